//! Arrays of the crate `ndarray` as inputs and outputs.

use super::sketch::Sketch;
use ndarray::{Array, Array2, ArrayD, ArrayViewD, ArrayViewMutD, Axis, array, s};
use stepalloc_runtime::{DataType, OpError, Session, Tensor, Type, View, f16};

/// `y` is `x` times `w`, which is 3 x 2.
fn product() -> Session {
    let w = Tensor::from_elements([3, 2], &[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0]).expect("as many");
    let sketch = Sketch::new(17).input("x", &[-1, 3]).tensor("w", w);
    Session::new(&sketch.node("MatMul", "x w", "y").output("y").model())
}

#[test]
fn a_session_takes_and_gives_arrays() {
    let x = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    let y = array![[4.0f32, 5.0], [10.0, 11.0]];
    let session = product();
    let made = session.run(&[("x", View::try_from(&x).expect("row by row"))]).expect("it runs");
    assert_eq!(ArrayViewD::<f32>::try_from(&made[0].1).expect("of f32"), y.view().into_dyn());
    let mut binding = session.binding();
    binding.bind_input("x", x.try_into().expect("a tensor")).expect("as declared");
    let mut bound: ArrayViewMutD<'_, f32> =
        binding.input_mut("x").expect("bound").try_into().expect("of f32");
    bound *= 2.0;
    binding.run().expect("it runs");
    let made: ArrayViewD<'_, f32> = binding.output("y").expect("made").try_into().expect("of f32");
    assert_eq!(made, (2.0 * y).into_dyn());
}

#[test]
fn views_of_tensors_are_where_the_tensors_are() {
    let mut tensor = Tensor::from_elements([2, 3], &[1i64, 2, 3, 4, 5, 6]).expect("six");
    let begin = tensor.view().bytes.as_ptr();
    let view = ArrayViewD::<i64>::try_from(&tensor).expect("of i64");
    assert_eq!((view.as_ptr().cast(), view.shape(), view[[1, 0]]), (begin, &[2, 3][..], 4));
    ArrayViewMutD::<i64>::try_from(&mut tensor).expect("of i64")[[1, 2]] = 60;
    assert_eq!(tensor.view().elements::<i64>(), [1, 2, 3, 4, 5, 60]);
    let own = ArrayD::<i64>::try_from(tensor).expect("of i64");
    assert_eq!((own.sum(), own.as_ptr().cast() == begin), (75, false));
    let scalar = Tensor::from_elements([], &[f16::ONE]).expect("one");
    assert_eq!(ArrayViewD::<f16>::try_from(&scalar).expect("of f16")[[]], f16::ONE);
    let none = Tensor::zeroed(Type::new(DataType::F32, [2, 0]).expect("small"));
    assert_eq!(ArrayViewD::<f32>::try_from(&none).expect("of f32").shape(), [2, 0]);
}

#[test]
fn a_tensor_has_the_memory_of_an_array_in_standard_layout() {
    let elements =
        || Array::from_iter((0..12).map(|at| at as f32)).into_shape_with_order((4, 3)).expect("twelve");
    let array = elements();
    let begin = array.as_ptr().cast::<u8>();
    let tensor = Tensor::try_from(array).expect("a tensor");
    assert_eq!((tensor.view().bytes.as_ptr(), &tensor.ty().shape[..]), (begin, &[4, 3][..]));
    // A part that begins within the memory, whose beginning is kept with it.
    let mut part = elements();
    part.slice_collapse(s![2.., ..]);
    let begin = part.as_ptr().cast::<u8>();
    let mut tensor = Tensor::try_from(part).expect("a tensor");
    assert_eq!(tensor.view().bytes.as_ptr(), begin);
    tensor.view_mut().elements::<f32>()[0] = 7.0;
    assert_eq!(tensor.view().elements::<f32>(), [7.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    // Columns, and rows that are turned round, are copied.
    let turned = elements().reversed_axes();
    let copy = Tensor::try_from(turned.clone()).expect("a tensor");
    assert_eq!(ArrayViewD::<f32>::try_from(&copy).expect("of f32"), turned.view().into_dyn());
    assert!(matches!(View::try_from(&turned), Err(OpError::Shape(_))));
    let mut back = elements();
    back.invert_axis(Axis(0));
    assert_eq!(Tensor::try_from(&back).expect("a tensor").view().elements::<f32>()[..3], [9.0, 10.0, 11.0]);
    assert_eq!(Tensor::try_from(back).expect("a tensor").view().elements::<f32>()[..3], [9.0, 10.0, 11.0]);
    let none = Tensor::try_from(Array2::<f32>::zeros((0, 3))).expect("a tensor");
    assert_eq!((none.ty().bytes(), &none.ty().shape[..]), (0, &[0, 3][..]));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let tensor = Tensor::from_elements([2], &[1.0f32, 2.0]).expect("two");
    let error = ArrayViewD::<i32>::try_from(&tensor).expect_err("of f32");
    assert_eq!(error.to_string(), "elements are of float32, not of int32");
    assert!(matches!(error, OpError::ElementType(_)));
    assert!(matches!(ArrayD::<f64>::try_from(tensor), Err(OpError::ElementType(_))));
    let aligned = [0u64; 2];
    let bytes = bytemuck::bytes_of(&aligned);
    let of = |bytes| View { dtype: DataType::F32, shape: &[2], bytes };
    assert!(ArrayViewD::<f32>::try_from(of(&bytes[..8])).is_ok());
    assert!(matches!(ArrayViewD::<f32>::try_from(of(&bytes[1..9])), Err(OpError::Value(_))));
    for wrong in [&bytes[..4], &bytes[..12], &bytes[..0]] {
        assert!(matches!(ArrayViewD::<f32>::try_from(of(wrong)), Err(OpError::Shape(_))));
    }
    // No elements, and as many as no address space has.
    let none = Array2::<f64>::zeros((0, isize::MAX as usize));
    assert!(matches!(Tensor::try_from(none), Err(OpError::Shape(_))));
}

#[test]
fn a_session_says_what_it_takes_and_gives() {
    let sketch = Sketch::new(17).input("x", &[2, -2]).number("scale", 3.0);
    let model = sketch.node("Mul", "x scale", "y").output("y").model();
    let session = Session::new(&model);
    let (inputs, outputs) = (session.inputs(), session.outputs());
    assert_eq!((inputs.len(), outputs.len(), model.inputs().len(), model.outputs().len()), (1, 1, 1, 1));
    let text = |value: &stepalloc_runtime::Value| {
        let declared = value.declared.as_ref().expect("it is declared");
        format!("{} {} {:?}", value.name, declared.dtype, declared.dims)
    };
    let texts: Vec<_> = inputs.chain(outputs).map(text).collect();
    assert_eq!(texts, ["x float32 Some([Fixed(2), Named(\"size -2\")])", "y float32 None"]);
    assert_eq!(model.inputs().chain(model.outputs()).map(text).collect::<Vec<_>>(), texts);
}
