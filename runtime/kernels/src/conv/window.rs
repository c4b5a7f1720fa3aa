//! Windows that slide over planes, for convolutions and pools.
//!
//! A *plane* is all spatial dimensions of one channel; its *rows* lie along the last of them. A window's place over the input is an
//! element of the output. A *tap* is one column of the window together with the outputs for which that column meets the input: work
//! is done tap by tap along whole rows, so that nothing is asked about borders element by element.

use rten_simd::{Isa, SimdOp};
use smallvec::SmallVec;
use std::ops::Range;
use stepalloc_tensor::OpError;

/// Attributes beyond this are refused: what is computed from them then stays within 64 bits.
pub const MOST: i64 = i32::MAX as i64;

/// How windows are laid out, as attributes say it.
pub struct Sliding {
    /// Sizes of the window; a convolution's weights tell them too.
    pub kernel: Option<Vec<usize>>,
    /// From a place of the window to the next one; 1 by default.
    pub strides: Option<Vec<usize>>,
    /// From an element of the window to the next one; 1 by default.
    pub dilations: Option<Vec<usize>>,
    /// All begins, then all ends.
    pub pads: Option<Vec<usize>>,
    /// Who says how much is padded.
    pub auto_pad: AutoPad,
    /// Windows that begin within the input count even if they end outside.
    pub ceil: bool,
}

/// Who says how much is padded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AutoPad {
    /// The pads.
    NotSet,
    /// As many places as elements divided by strides; what is odd is padded behind.
    SameUpper,
    /// The same, but before.
    SameLower,
    /// Nothing is padded.
    Valid,
}

impl Sliding {
    /// One entry for each axis: of the attribute, or `default`.
    fn along(
        &self,
        of: &Option<Vec<usize>>,
        name: &str,
        rank: usize,
    ) -> Result<SmallVec<[usize; 4]>, OpError> {
        match of {
            None => Ok(SmallVec::from_elem(1, rank)),
            Some(of) if of.len() == rank => Ok(of.iter().copied().collect()),
            Some(of) => Err(OpError::attribute(format!("{name} are {of:?}, of {rank} spatial dimensions"))),
        }
    }

    /// Sizes, strides and dilations of a window over so many dimensions, without places.
    pub fn axes(&self, input: &[usize], kernel: &[usize]) -> Result<SmallVec<[Axis; 3]>, OpError> {
        let rank = input.len();
        if rank == 0 {
            return Err(OpError::shape("there are no spatial dimensions"));
        }
        if kernel.len() != rank || self.kernel.as_ref().is_some_and(|told| told != kernel) {
            let told = self.kernel.as_deref().unwrap_or(kernel);
            return Err(OpError::attribute(format!(
                "kernel_shape is {told:?}, of {rank} spatial dimensions and weights {kernel:?}"
            )));
        }
        if let Some(&most) = kernel.iter().find(|&&size| size as i64 > MOST) {
            return Err(OpError::shape(format!("a window of {most} elements is too large")));
        }
        let strides = self.along(&self.strides, "strides", rank)?;
        let dilations = self.along(&self.dilations, "dilations", rank)?;
        let pads = self.pads.as_deref();
        if let Some(pads) = pads.filter(|pads| pads.len() != 2 * rank) {
            return Err(OpError::attribute(format!("pads are {pads:?}, of {rank} spatial dimensions")));
        }
        let pad = |at: usize| pads.map_or(0, |pads| pads[at]);
        let axis = |at: usize| Axis {
            input: input[at],
            output: 0,
            kernel: kernel[at],
            stride: strides[at],
            dilation: dilations[at],
            begin: pad(at),
            end: pad(rank + at),
        };
        Ok((0..rank).map(axis).collect())
    }

    /// The windows over an input.
    pub fn window(&self, input: &[usize], kernel: &[usize]) -> Result<Window, OpError> {
        let mut axes = self.axes(input, kernel)?;
        for axis in &mut axes {
            let extent = axis.extent();
            if matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower) {
                axis.output = axis.input.div_ceil(axis.stride);
                let reach = axis.output.saturating_sub(1) * axis.stride + extent;
                let total = reach.saturating_sub(axis.input);
                let half = total / 2;
                (axis.begin, axis.end) = if self.auto_pad == AutoPad::SameUpper {
                    (half, total - half)
                } else {
                    (total - half, half)
                };
                continue;
            }
            if self.auto_pad == AutoPad::Valid {
                (axis.begin, axis.end) = (0, 0);
            }
            let padded = axis.input + axis.begin + axis.end;
            let Some(free) = padded.checked_sub(extent) else {
                return Err(OpError::shape(format!(
                    "a window of {extent} does not fit into {padded} elements"
                )));
            };
            axis.output = free / axis.stride + 1;
            // A last window that is cut off; it must not begin in what is padded at the end.
            let ceil = self.ceil && self.auto_pad == AutoPad::NotSet;
            if ceil && free % axis.stride != 0 && axis.output * axis.stride < axis.input + axis.begin {
                axis.output += 1;
            }
        }
        Ok(Window::new(axes))
    }
}

/// A window along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Elements of the input.
    pub input: usize,
    /// Places of the window.
    pub output: usize,
    /// Elements of the window.
    pub kernel: usize,
    /// From a place to the next one.
    pub stride: usize,
    /// From an element of the window to the next one.
    pub dilation: usize,
    /// What is padded before the input.
    pub begin: usize,
    /// And behind it.
    pub end: usize,
}

impl Axis {
    /// The places at which all of the window lies within the input.
    pub fn inside(&self) -> Range<usize> {
        let begin = self.begin.div_ceil(self.stride).min(self.output);
        let last = (self.input + self.begin).checked_sub(self.extent()).map(|last| last / self.stride + 1);
        begin..last.unwrap_or(0).clamp(begin, self.output)
    }

    /// From the window's first element to its last, both included; none of an empty window.
    pub fn extent(&self) -> usize {
        match self.kernel {
            0 => 0,
            kernel => (kernel - 1) * self.dilation + 1,
        }
    }

    /// Elements of the window in a place that meet the input, or with `padded` what is padded too.
    pub fn count(&self, place: usize, padded: bool) -> usize {
        let (first, last) = if padded {
            (0, self.begin + self.input + self.end)
        } else {
            (self.begin, self.begin + self.input)
        };
        let place = place * self.stride;
        let before = |bound: usize| bound.saturating_sub(place).div_ceil(self.dilation).min(self.kernel);
        before(last) - before(first)
    }
}

/// A column of the window, and the outputs for which it meets the input.
#[derive(Clone, Copy, Debug)]
pub struct Tap {
    /// Of the window.
    pub column: usize,
    /// Of a row of the output, the first one.
    pub begin: usize,
    /// And the one behind the last.
    pub end: usize,
    /// Where in a row of the input `begin` finds its element.
    pub first: usize,
}

/// Windows over a plane.
#[derive(Clone, Debug)]
pub struct Window {
    /// One for each dimension.
    pub axes: SmallVec<[Axis; 3]>,
}

impl Window {
    /// Along these dimensions.
    pub fn new(axes: SmallVec<[Axis; 3]>) -> Self {
        Self { axes }
    }

    /// The same windows, with rows along the last dimension that has more than one element. The output's shape is not told any more.
    pub fn with_long_rows(mut self) -> Self {
        let one = |axis: &Axis| axis.input == 1 && axis.kernel == 1 && axis.output == 1 && axis.begin == 0;
        while self.axes.len() > 1 && one(self.last()) {
            self.axes.pop();
        }
        self
    }

    /// Columns of the kernel that meet the input, each with the columns of the output for which they do.
    fn taps(&self) -> impl Iterator<Item = Tap> {
        let axis = *self.last();
        let met = (0..axis.kernel).take_while(move |column| column * axis.dilation < axis.begin + axis.input);
        met.filter_map(move |column| {
            let at = column * axis.dilation;
            let begin = axis.begin.saturating_sub(at).div_ceil(axis.stride);
            let end = (axis.begin + axis.input - at).div_ceil(axis.stride).min(axis.output);
            (begin < end).then(|| Tap { column, begin, end, first: begin * axis.stride + at - axis.begin })
        })
    }

    fn last(&self) -> &Axis {
        self.axes.last().expect("there are spatial dimensions")
    }

    /// Elements of a plane of the input.
    pub fn input(&self) -> usize {
        self.axes.iter().map(|axis| axis.input).product()
    }

    /// Elements of a plane of the output.
    pub fn output(&self) -> usize {
        self.axes.iter().map(|axis| axis.output).product()
    }

    /// Elements of the window.
    pub fn kernel(&self) -> usize {
        self.axes.iter().map(|axis| axis.kernel).product()
    }

    /// Elements of a row of the output.
    pub fn width(&self) -> usize {
        self.last().output
    }

    /// Whether the output is the input, element by element.
    pub fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|axis| axis.kernel == 1 && axis.stride == 1 && axis.begin == 0 && axis.end == 0)
    }

    /// Rows of a plane of the output.
    pub fn rows(&self) -> usize {
        self.axes[..self.axes.len() - 1].iter().map(|axis| axis.output).product()
    }

    /// Sizes of the output.
    pub fn shape(&self) -> impl Iterator<Item = usize> {
        self.axes.iter().map(|axis| axis.output)
    }

    /// Rows of the window.
    pub fn kernel_rows(&self) -> usize {
        self.axes[..self.axes.len() - 1].iter().map(|axis| axis.kernel).product()
    }

    /// The row of the input that a row of the window meets where an output row is made, if it meets any.
    #[inline(never)]
    pub fn meeting(&self, mut row: usize, mut at: usize) -> Option<usize> {
        let (mut input, mut size) = (0, 1);
        for (number, axis) in self.axes[..self.axes.len() - 1].iter().enumerate().rev() {
            // The outermost needs no division.
            let [place, place_at] =
                if number == 0 { [row, at] } else { [row % axis.output, at % axis.kernel] };
            let met = (place * axis.stride + place_at * axis.dilation).checked_sub(axis.begin)?;
            if met >= axis.input {
                return None;
            }
            input += met * size;
            if number > 0 {
                size *= axis.input;
                row /= axis.output;
                at /= axis.kernel;
            }
        }
        Some(input)
    }

    /// Folds each window of a plane into an element of the output: it begins as `start`, and `fold` gives for each element of the
    /// window what takes in an element of the input.
    pub fn fold<A, B, F, G>(&self, input: &[A], output: &mut [B], start: B, fold: F)
    where
        A: Copy,
        B: Copy,
        F: Fn(usize) -> G,
        G: Fn(B, A) -> B,
    {
        Fold { window: self, input, output, start, fold }.dispatch();
    }

    /// The same for what is rare: compiled once.
    pub fn fold_plainly<A, B, F, G>(&self, input: &[A], output: &mut [B], start: B, fold: F)
    where
        A: Copy,
        B: Copy,
        F: Fn(usize) -> G,
        G: Fn(B, A) -> B,
    {
        Fold { window: self, input, output, start, fold }.run();
    }

    /// Lays out, for each element of the windows over each of the planes (a row of `to`), the elements of the input that it meets
    /// while the given rows of the output are made; elsewhere `padding`.
    pub fn columns<A: Copy + Sync, B: bytemuck::Pod + Send + Sync>(
        &self,
        planes: &[A],
        rows: Range<usize>,
        to: &mut [B],
        padding: B,
        make: impl Fn(A) -> B + Sync,
    ) {
        let (width, inputs) = (rows.len() * self.width(), self.last().input);
        let (kernel, plane) = (self.kernel(), self.input());
        if to.is_empty() || plane == 0 {
            return to.fill(padding);
        }
        let least = if to.len() < crate::gemm::PARALLEL { usize::MAX } else { 1 };
        stepalloc_threads::pieces(to, kernel * width, least, &|number, to| {
            let input = &planes[number * plane..][..plane];
            to.fill(padding);
            for (number, row) in rows.clone().enumerate() {
                for kernel_row in 0..self.kernel_rows() {
                    let Some(input_row) = self.meeting(row, kernel_row) else { continue };
                    let input = &input[input_row * inputs..][..inputs];
                    for tap in self.taps() {
                        let at = (kernel_row * self.last().kernel + tap.column) * width;
                        let to = &mut to[at + number * self.width()..][tap.begin..tap.end];
                        along(to, &input[tap.first..], self.last().stride, |_, x| make(x));
                    }
                }
            }
        });
    }

    /// Adds what [`Window::columns`] would lay out back to a plane of the input: what a transposed convolution does. All rows of the
    /// output are there.
    pub fn scatter<T: Copy + std::ops::Add<Output = T>>(&self, columns: &[T], plane: &mut [T]) {
        let (all, width, inputs) = (self.output(), self.width(), self.last().input);
        for row in 0..self.rows() {
            for kernel_row in 0..self.kernel_rows() {
                let Some(input_row) = self.meeting(row, kernel_row) else { continue };
                let plane = &mut plane[input_row * inputs..][..inputs];
                for tap in self.taps() {
                    let at = (kernel_row * self.last().kernel + tap.column) * all;
                    let from = &columns[at + row * width..][tap.begin..tap.end];
                    let plane = &mut plane[tap.first..];
                    match self.last().stride {
                        1 => plane.iter_mut().zip(from).for_each(|(to, &x)| *to = *to + x),
                        by => plane.iter_mut().step_by(by).zip(from).for_each(|(to, &x)| *to = *to + x),
                    }
                }
            }
        }
    }
}

/// Changes each element of a row by every `stride`-th of another.
#[inline(always)]
fn along<A: Copy, B: Copy>(to: &mut [B], from: &[A], stride: usize, f: impl Fn(B, A) -> B) {
    match stride {
        1 => to.iter_mut().zip(from).for_each(|(to, &x)| *to = f(*to, x)),
        2 => {
            let (pairs, rest) = from.as_chunks::<2>();
            let (to, last) = to.split_at_mut(pairs.len().min(to.len()));
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = f(*to, pair[0]));
            last.iter_mut().zip(rest).for_each(|(to, &x)| *to = f(*to, x));
        }
        _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &x)| *to = f(*to, x)),
    }
}

/// [`Window::fold`], compiled for the machine's vectors.
struct Fold<'a, A, B, F> {
    window: &'a Window,
    input: &'a [A],
    output: &'a mut [B],
    start: B,
    fold: F,
}

impl<A, B, F, G> SimdOp for Fold<'_, A, B, F>
where
    A: Copy,
    B: Copy,
    F: Fn(usize) -> G,
    G: Fn(B, A) -> B,
{
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) {
        self.run();
    }
}

impl<A, B, F, G> Fold<'_, A, B, F>
where
    A: Copy,
    B: Copy,
    F: Fn(usize) -> G,
    G: Fn(B, A) -> B,
{
    #[inline(always)]
    fn run(self) {
        let Self { window, input, output, start, fold } = self;
        let &Axis { input: inputs, kernel, stride, .. } = window.last();
        if window.width() == 0 {
            return;
        }
        for (row, output) in output.chunks_exact_mut(window.width()).enumerate() {
            output.fill(start);
            for kernel_row in 0..window.kernel_rows() {
                let Some(input_row) = window.meeting(row, kernel_row) else { continue };
                let input = &input[input_row * inputs..][..inputs];
                for tap in window.taps() {
                    let take = fold(kernel_row * kernel + tap.column);
                    along(&mut output[tap.begin..tap.end], &input[tap.first..], stride, take);
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A dimension that windows move along: its size, the kernel's, their stride and dilation, and what is padded before and behind.
    pub fn axis([input, kernel, stride, dilation, begin, end]: [usize; 6]) -> Axis {
        let output = (input + begin + end - ((kernel - 1) * dilation + 1)) / stride + 1;
        Axis { input, output, kernel, stride, dilation, begin, end }
    }

    #[test]
    fn folding_meets_what_a_search_of_all_elements_meets() {
        for axes in [
            vec![axis([5, 3, 1, 1, 1, 1])],
            vec![axis([7, 3, 2, 1, 1, 0]), axis([6, 2, 2, 2, 0, 3])],
            vec![axis([4, 2, 3, 1, 2, 2]), axis([3, 3, 1, 1, 1, 1]), axis([9, 3, 3, 2, 4, 0])],
            vec![axis([1, 4, 1, 2, 5, 5]), axis([2, 2, 2, 1, 2, 2])],
        ] {
            let window = Window::new(axes.iter().copied().collect());
            let input: Vec<i64> = (1..=window.input() as i64).collect();
            let mut output = vec![-1; window.output()];
            window.fold(&input, &mut output, 0, |kernel| move |sum, x: i64| sum + x * (kernel as i64 + 1));
            for (place, &sum) in output.iter().enumerate() {
                let mut expected = 0;
                'kernel: for kernel in 0..window.kernel() {
                    let (mut place, mut rest, mut at, mut size) = (place, kernel, 0, 1);
                    for axis in axes.iter().rev() {
                        let padded = place % axis.output * axis.stride + rest % axis.kernel * axis.dilation;
                        if padded < axis.begin || padded - axis.begin >= axis.input {
                            continue 'kernel;
                        }
                        at += (padded - axis.begin) * size;
                        size *= axis.input;
                        place /= axis.output;
                        rest /= axis.kernel;
                    }
                    expected += input[at] * (kernel as i64 + 1);
                }
                assert_eq!(sum, expected, "at {place} of {axes:?}");
            }
        }
    }

    #[test]
    fn inside_windows_meet_as_many_elements_as_they_have() {
        for sizes in [
            [5, 3, 1, 1, 1, 1],
            [9, 3, 2, 1, 1, 0],
            [7, 2, 3, 2, 1, 0],
            [1, 4, 1, 2, 5, 5],
            [4, 1, 1, 1, 0, 0],
        ] {
            let axis = axis(sizes);
            let inside = axis.inside();
            for place in 0..axis.output {
                assert_eq!(
                    inside.contains(&place),
                    axis.count(place, false) == axis.kernel,
                    "{place} of {axis:?}"
                );
            }
        }
    }

    #[test]
    fn sequences_that_come_as_planes_of_one_column_have_long_rows() {
        let (long, one) = (axis([5, 3, 2, 1, 1, 1]), axis([1, 1, 1, 1, 0, 0]));
        let plane = Window::new([long, one, one].into_iter().collect());
        let columns = |window: &Window| {
            let mut columns = vec![9; window.kernel() * window.output()];
            window.columns(&[1, 2, 3, 4, 5], 0..window.rows(), &mut columns, 0, |x: i32| x);
            columns
        };
        let rows = plane.clone().with_long_rows();
        assert_eq!((rows.axes.len(), rows.width()), (1, long.output));
        assert_eq!(columns(&rows), columns(&plane));
        assert_eq!(Window::new([one, one].into_iter().collect()).with_long_rows().axes.len(), 1);
        let padded = Window::new([long, axis([1, 1, 2, 1, 1, 0])].into_iter().collect());
        assert_eq!(padded.with_long_rows().axes.len(), 2);
    }

    #[test]
    fn columns_scattered_back_count_the_windows_over_each_element() {
        let window = Window::new([axis([5, 3, 2, 1, 1, 1]), axis([4, 2, 1, 1, 0, 0])].into_iter().collect());
        let mut columns = vec![9; window.kernel() * window.output()];
        window.columns(&[1; 20], 0..window.rows(), &mut columns, 0, |x: i32| x);
        let mut plane = vec![0; 20];
        window.scatter(&columns, &mut plane);
        assert_eq!(plane[..8], [1, 2, 2, 1, 2, 4, 4, 2]);
    }
}
