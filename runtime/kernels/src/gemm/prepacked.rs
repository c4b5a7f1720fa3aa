//! Constant factors of products and weights of convolutions, in the order in which the kernel reads them.
//!
//! A product packs its right factor panel by panel, anew in each run. That of a constant one is done once, when it is first
//! multiplied, and for all sessions that have the same elements, whichever file they are from. The pages of the file that were
//! read for it go back to the system: packed weights take the place of those in the file.

use crate::gemm::packed::Columns;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use stepalloc_tensor::{OpError, Tensor};

/// How a tensor is read as a matrix that is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Rows as it is multiplied.
    pub rows: usize,
    /// Columns as it is multiplied.
    pub cols: usize,
    /// Whether the tensor has it column by column.
    pub transposed: bool,
    /// As many columns of each group are packed by themselves.
    pub groups: usize,
    /// Where it is transposed, the number of neighbouring elements that are packed as far apart as possible: those of a convolution's window,
    /// so that the channels that an element of it meets are next to each other. 1 leaves the order as it is.
    pub taps: usize,
}

/// A packed matrix, and what it was packed from.
pub struct Packed {
    columns: Columns,
    key: Key,
    of: Arc<Tensor>,
}

/// A hash of the elements, and how they are read.
type Key = (u64, Layout);
/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 18;

/// What is packed now.
static PACKED: Mutex<Option<HashMap<Key, Vec<Weak<Packed>>>>> = Mutex::new(None);

fn all() -> MutexGuard<'static, Option<HashMap<Key, Vec<Weak<Packed>>>>> {
    PACKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Deref for Packed {
    type Target = Columns;

    fn deref(&self) -> &Columns {
        &self.columns
    }
}

impl Packed {
    /// A matrix of f32: what others have of the same elements, or a new one.
    pub fn of(tensor: &Arc<Tensor>, layout: Layout) -> Result<Arc<Self>, OpError> {
        // Another plan's: nothing is read for it.
        let is_same = |packed: &Arc<Self>| Arc::ptr_eq(&packed.of, tensor);
        if let Some(found) = Self::alive(|(_, other)| *other == layout).into_iter().find(is_same) {
            return Ok(found);
        }
        let mut hasher = DefaultHasher::new();
        tensor.pieces(PIECE, &mut |_, piece| piece.hash(&mut hasher));
        let key = (hasher.finish(), layout);
        if let Some(found) =
            Self::alive(|other| *other == key).into_iter().find(|made| made.of.is_alike(tensor))
        {
            return Ok(found);
        }
        let made = Arc::new(Self { columns: Columns::pack(tensor, layout)?, key, of: Arc::clone(tensor) });
        all().get_or_insert_default().entry(key).or_default().push(Arc::downgrade(&made));
        Ok(made)
    }

    /// Those of these keys. They must not be dropped while the table is locked.
    fn alive(of: impl Fn(&Key) -> bool) -> Vec<Arc<Self>> {
        let all = all();
        let those = all.iter().flatten().filter(|(key, _)| of(key)).flat_map(|(_, same)| same);
        those.filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let mut all = all();
        let Some(all) = all.as_mut() else { return };
        if let Some(same) = all.get_mut(&self.key) {
            same.retain(|packed| packed.strong_count() > 0);
            if same.is_empty() {
                all.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::packed::gemm_packed;
    use crate::gemm::{Matrix, gemm_f32};

    fn layout(rows: usize, cols: usize, transposed: bool) -> Layout {
        Layout { rows, cols, transposed, groups: 1, taps: 1 }
    }

    fn weights(rows: usize, cols: usize, seed: f32) -> Arc<Tensor> {
        let elements: Vec<_> = (0..rows * cols).map(|at| (at as f32 * seed).sin()).collect();
        Arc::new(Tensor::from_elements([rows, cols], &elements).expect("as many as the shape says"))
    }

    #[test]
    fn packed_once_for_all_who_have_the_same_elements() {
        let (one, same, other) = (weights(70, 90, 0.1), weights(70, 90, 0.1), weights(70, 90, 0.2));
        let packed = [&one, &same, &other]
            .map(|tensor| Packed::of(tensor, layout(70, 90, false)).expect("it is packed"));
        let [first, second, third] = packed.each_ref().map(Arc::as_ptr);
        assert_eq!(first, second);
        assert_ne!(first, third);
        // The same bytes read otherwise are another matrix.
        let turned = Packed::of(&one, layout(90, 70, true)).expect("it is packed");
        assert_ne!(first, Arc::as_ptr(&turned));
        let key = packed[0].key;
        let listed = || all().as_ref().is_some_and(|all| all.contains_key(&key));
        assert!(listed());
        drop(packed);
        assert!(!listed(), "nobody has it any more");
    }

    #[test]
    fn products_with_packed_factors_are_the_same() {
        // Of fewer rows, products have other ways of summing.
        const ROWS: usize = 20;
        for transposed in [false, true] {
            let (rows, cols) = (65, 130);
            let tensor = if transposed { weights(cols, rows, 0.3) } else { weights(rows, cols, 0.3) };
            let view = tensor.view();
            let matrix = Matrix::new(view.elements::<f32>(), view.shape[0], view.shape[1]);
            let matrix = if transposed { matrix.transposed() } else { matrix };
            let a: Vec<_> = (0..ROWS * rows).map(|at| (at as f32 * 0.7).cos()).collect();
            let a = Matrix::new(&a, ROWS, rows);
            let (mut plain, mut with) = (vec![0.0; ROWS * cols], vec![0.0; ROWS * cols]);
            gemm_f32(&mut plain, a, matrix, (2.0, 0.0), None).expect("it can be multiplied");
            let packed = Packed::of(&tensor, layout(rows, cols, transposed)).expect("it is packed");
            gemm_packed(&mut with, a, (&packed, 0), (2.0, 0.0), None).expect("it can be multiplied");
            for (plain, with) in plain.iter().zip(&with) {
                // The order of summing is another one.
                assert!((plain - with).abs() < 1e-4, "{with} instead of {plain}");
            }
        }
    }
}
