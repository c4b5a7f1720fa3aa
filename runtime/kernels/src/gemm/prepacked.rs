//! Constant factors of products, in the order in which the kernel reads them.
//!
//! A product packs its right factor panel by panel, anew in each run. That of a constant one is done once, when it is first
//! multiplied, and for all sessions that have the same elements, whichever file they are from. The pages of the file that were
//! read for it go back to the system: packed weights take the place of those in the file.

use crate::gemm::{Matrix, packed};
pub use rten_gemm::PackedBMatrix;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use stepalloc_tensor::{Tensor, mapped};

/// A packed matrix, and what it was packed from.
pub struct Packed {
    matrix: PackedBMatrix<f32>,
    key: Key,
    of: Arc<Tensor>,
}

/// A hash of the elements, rows, columns, and whether these are turned.
type Key = (u64, usize, usize, bool);

/// What is packed now.
static PACKED: Mutex<Option<HashMap<Key, Vec<Weak<Packed>>>>> = Mutex::new(None);

fn all() -> MutexGuard<'static, Option<HashMap<Key, Vec<Weak<Packed>>>>> {
    PACKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Packed {
    /// The packed matrix.
    pub fn matrix(&self) -> &PackedBMatrix<f32> {
        &self.matrix
    }

    /// A matrix of f32 with these numbers of rows and columns as it is multiplied, which the tensor has row by row, or column by column if it is
    /// `transposed`: what others have of the same elements, or a new one.
    pub fn of(tensor: &Arc<Tensor>, [rows, cols]: [usize; 2], transposed: bool) -> Result<Arc<Self>, String> {
        // Another plan's: nothing is read for it.
        let is_same = |packed: &Arc<Self>| {
            let (_, other_rows, other_cols, other_transposed) = packed.key;
            Arc::ptr_eq(&packed.of, tensor)
                && (other_rows, other_cols, other_transposed) == (rows, cols, transposed)
        };
        if let Some(found) = Self::alive(|_| true).into_iter().find(is_same) {
            return Ok(found);
        }
        // Of what is copied from a file when it is used, no copy stays.
        let passing = tensor.in_passing();
        let view = passing.as_ref().unwrap_or(tensor).view();
        let mut hasher = DefaultHasher::new();
        view.bytes.hash(&mut hasher);
        let key = (hasher.finish(), rows, cols, transposed);
        let elements = view.elements::<f32>();
        let matrix = match transposed {
            true => Matrix::new(elements, cols, rows).transposed(),
            false => Matrix::new(elements, rows, cols),
        };
        let made = match Self::found(key, view.bytes) {
            Some(found) => found,
            None => {
                let made = Arc::new(Self { matrix: packed(matrix)?, key, of: Arc::clone(tensor) });
                all().get_or_insert_default().entry(key).or_default().push(Arc::downgrade(&made));
                made
            }
        };
        if tensor.is_lent() {
            mapped::settle_part(view.bytes);
        }
        Ok(made)
    }

    /// Those of these keys. They must not be dropped while the table is locked.
    fn alive(of: impl Fn(&Key) -> bool) -> Vec<Arc<Self>> {
        let all = all();
        let those = all.iter().flatten().filter(|(key, _)| of(key)).flat_map(|(_, same)| same);
        those.filter_map(Weak::upgrade).collect()
    }

    /// One that was packed from the same elements.
    fn found(key: Key, bytes: &[u8]) -> Option<Arc<Self>> {
        Self::alive(|other| *other == key).into_iter().find(|packed| {
            let passing = packed.of.in_passing();
            let equal = passing.as_ref().unwrap_or(&packed.of).view().bytes == bytes;
            if packed.of.is_lent() {
                mapped::settle_part(packed.of.view().bytes);
            }
            equal
        })
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
    use crate::gemm::{gemm_f32, gemm_packed};

    fn weights(rows: usize, cols: usize, seed: f32) -> Arc<Tensor> {
        let elements: Vec<_> = (0..rows * cols).map(|at| (at as f32 * seed).sin()).collect();
        Arc::new(Tensor::from_elements([rows, cols], &elements).expect("as many as the shape says"))
    }

    #[test]
    fn packed_once_for_all_who_have_the_same_elements() {
        let (one, same, other) = (weights(70, 90, 0.1), weights(70, 90, 0.1), weights(70, 90, 0.2));
        let packed =
            [&one, &same, &other].map(|tensor| Packed::of(tensor, [70, 90], false).expect("it is packed"));
        let [first, second, third] = packed.each_ref().map(Arc::as_ptr);
        assert_eq!(first, second);
        assert_ne!(first, third);
        // The same bytes read otherwise are another matrix.
        let turned = Packed::of(&one, [90, 70], true).expect("it is packed");
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
            let packed = Packed::of(&tensor, [rows, cols], transposed).expect("it is packed");
            gemm_packed(&mut with, a, packed.matrix(), (2.0, 0.0), None).expect("it can be multiplied");
            assert_eq!(plain, with);
        }
    }
}
