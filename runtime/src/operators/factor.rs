//! Constant factors of products, in the order in which the kernel reads them.
//!
//! A product packs its right factor panel by panel, anew in each run. That of a constant one is done once, when it is first
//! multiplied, and for all sessions that have the same elements, whichever file they are from. The pages of the file that were
//! read for it go back to the system: packed weights take the place of those in the file.

use super::gemm::{Matrix, packed};
use crate::mapped;
use crate::tensor::Tensor;
use rten_gemm::PackedBMatrix;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// How a product reads its right factor, a matrix of f32 row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The input that it is.
    pub input: usize,
    /// Rows as it is multiplied.
    pub rows: usize,
    /// Columns as it is multiplied.
    pub cols: usize,
    /// Whether the tensor has them the other way round.
    pub transposed: bool,
}

/// A constant right factor of one node.
pub(crate) struct Factor {
    pub reading: Reading,
    tensor: Arc<Tensor>,
    packed: OnceLock<Result<Arc<Packed>, String>>,
}

impl Factor {
    /// Nothing is packed yet.
    pub(crate) fn new(reading: Reading, tensor: Arc<Tensor>) -> Self {
        Self { reading, tensor, packed: OnceLock::new() }
    }

    /// The packed matrix.
    pub(crate) fn packed(&self) -> Result<&PackedBMatrix<f32>, String> {
        let packed = self.packed.get_or_init(|| Packed::of(&self.tensor, self.reading));
        packed.as_ref().map(|packed| &packed.matrix).map_err(Clone::clone)
    }
}

/// A packed matrix, and what it was packed from.
struct Packed {
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
    /// What others have of the same elements, or a new one.
    fn of(tensor: &Arc<Tensor>, reading: Reading) -> Result<Arc<Self>, String> {
        // Another plan's: nothing is read for it.
        let is_same = |packed: &Arc<Self>| {
            let Reading { rows, cols, transposed, .. } = reading;
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
        let Reading { rows, cols, transposed, .. } = reading;
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
    use super::super::gemm::{gemm_f32, gemm_packed};
    use super::*;

    fn weights(rows: usize, cols: usize, seed: f32) -> Arc<Tensor> {
        let elements: Vec<_> = (0..rows * cols).map(|at| (at as f32 * seed).sin()).collect();
        Arc::new(Tensor::from_elements([rows, cols], &elements).expect("as many as the shape says"))
    }

    #[test]
    fn packed_once_for_all_who_have_the_same_elements() {
        let reading = Reading { input: 1, rows: 70, cols: 90, transposed: false };
        let (one, same, other) = (weights(70, 90, 0.1), weights(70, 90, 0.1), weights(70, 90, 0.2));
        let factors = [&one, &same, &other].map(|tensor| Factor::new(reading, Arc::clone(tensor)));
        let [first, second, third] =
            factors.each_ref().map(|factor| std::ptr::from_ref(factor.packed().expect("it is packed")));
        assert_eq!(first, second);
        assert_ne!(first, third);
        // The same bytes read otherwise are another matrix.
        let turned = Factor::new(Reading { rows: 90, cols: 70, transposed: true, ..reading }, one);
        assert_ne!(first, std::ptr::from_ref(turned.packed().expect("it is packed")));
        let key = factors[0].packed.get().expect("it was packed").as_ref().expect("and well").key;
        let listed = || all().as_ref().is_some_and(|all| all.contains_key(&key));
        assert!(listed());
        drop(factors);
        assert!(!listed(), "nobody has it any more");
    }

    #[test]
    fn products_with_packed_factors_are_the_same() {
        for transposed in [false, true] {
            let (rows, cols) = (65, 130);
            let tensor = if transposed { weights(cols, rows, 0.3) } else { weights(rows, cols, 0.3) };
            let view = tensor.view();
            let matrix = Matrix::new(view.elements::<f32>(), view.shape[0], view.shape[1]);
            let matrix = if transposed { matrix.transposed() } else { matrix };
            let a: Vec<_> = (0..7 * rows).map(|at| (at as f32 * 0.7).cos()).collect();
            let a = Matrix::new(&a, 7, rows);
            let (mut plain, mut with) = (vec![0.0; 7 * cols], vec![0.0; 7 * cols]);
            gemm_f32(&mut plain, a, matrix, (2.0, 0.0), None).expect("it can be multiplied");
            let factor = Factor::new(Reading { input: 1, rows, cols, transposed }, Arc::clone(&tensor));
            gemm_packed(&mut with, a, factor.packed().expect("it is packed"), (2.0, 0.0), None)
                .expect("it can be multiplied");
            assert_eq!(plain, with);
        }
    }
}
