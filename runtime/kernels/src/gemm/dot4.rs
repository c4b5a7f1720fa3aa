//! Products of unsigned bytes by signed bytes, exact in sums of 32 bits, four bytes of a row and a column at a time.
//!
//! Columns lie in a panel ([`stepalloc_tensor::quads`]): four elements of a column side by side, beside those of the next column, as
//! processors' dot products take them (x86-64's VNNI; elsewhere products of 16 bits, which do not saturate either). Rows lie as they are.
//! Either factor may be the signed one: weights of a convolution are rows, those of a product of matrices columns.

pub use stepalloc_tensor::quads::{Quad, WIDTH, panel_bytes, quads};

/// Rows of a tile.
const ROWS: usize = 6;

/// What a machine multiplies with.
trait Machine: Copy {
    /// Sums of some columns.
    type Sums: Copy;
    /// Quads of as many columns.
    type Cols: Copy;
    /// A quad of a row for each of them.
    type Row: Copy;
    /// Columns.
    const LANES: usize;

    fn zero(self) -> Self::Sums;
    /// Of the first columns of these, of which there are enough.
    fn cols(self, from: &[Quad], signed: bool) -> Self::Cols;
    fn row(self, quad: Quad, signed: bool) -> Self::Row;
    /// Adds the products of four; columns are signed, or rows.
    fn dot(self, sums: Self::Sums, cols: Self::Cols, row: Self::Row, cols_signed: bool) -> Self::Sums;
    fn store(self, sums: Self::Sums, to: &mut [i32]);
}

/// Machines without instructions for it.
#[derive(Clone, Copy)]
struct Portable;

const PORTABLE: usize = 8;

impl Machine for Portable {
    type Sums = [i32; PORTABLE];
    type Cols = [[i16; 4]; PORTABLE];
    type Row = [i16; 4];
    const LANES: usize = PORTABLE;

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [0; PORTABLE]
    }

    #[inline(always)]
    fn cols(self, from: &[Quad], signed: bool) -> Self::Cols {
        std::array::from_fn(|lane| self.row(from[lane], signed))
    }

    #[inline(always)]
    fn row(self, quad: Quad, signed: bool) -> Self::Row {
        quad.map(|x| if signed { i16::from(x as i8) } else { i16::from(x) })
    }

    #[inline(always)]
    fn dot(self, mut sums: Self::Sums, cols: Self::Cols, row: Self::Row, _: bool) -> Self::Sums {
        for (sum, col) in sums.iter_mut().zip(cols) {
            let products = col.iter().zip(row).map(|(&x, y)| i32::from(x) * i32::from(y));
            *sum = sum.wrapping_add(products.sum::<i32>());
        }
        sums
    }

    #[inline(always)]
    fn store(self, sums: Self::Sums, to: &mut [i32]) {
        to[..PORTABLE].copy_from_slice(&sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Machine, Quad};
    use std::arch::x86_64::*;

    /// AVX-512 with VNNI.
    #[derive(Clone, Copy)]
    pub struct Vnni(());

    impl Vnni {
        /// # Safety
        /// The processor has what [`super::has_vnni`] looks for, and the caller is compiled for it.
        #[inline(always)]
        pub unsafe fn new() -> Self {
            Self(())
        }
    }

    impl Machine for Vnni {
        type Sums = __m512i;
        type Cols = __m512i;
        type Row = __m512i;
        const LANES: usize = 16;

        #[inline(always)]
        fn zero(self) -> __m512i {
            // SAFETY: see `new`.
            unsafe { _mm512_setzero_si512() }
        }

        #[inline(always)]
        fn cols(self, from: &[Quad], _: bool) -> __m512i {
            let from = &from[..Self::LANES];
            // SAFETY: see `new`; 64 bytes are there.
            unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
        }

        #[inline(always)]
        fn row(self, quad: Quad, _: bool) -> __m512i {
            // SAFETY: see `new`.
            unsafe { _mm512_set1_epi32(i32::from_ne_bytes(quad)) }
        }

        #[inline(always)]
        fn dot(self, sums: __m512i, cols: __m512i, row: __m512i, cols_signed: bool) -> __m512i {
            let (unsigned, signed) = if cols_signed { (row, cols) } else { (cols, row) };
            // SAFETY: see `new`.
            unsafe { _mm512_dpbusd_epi32(sums, unsigned, signed) }
        }

        #[inline(always)]
        fn store(self, sums: __m512i, to: &mut [i32]) {
            let to = &mut to[..Self::LANES];
            // SAFETY: see `new`; there is room for 64 bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sums) }
        }
    }

    /// AVX2: bytes at even and at odd places become 16 bits each.
    #[derive(Clone, Copy)]
    pub struct Avx2(());

    impl Avx2 {
        /// # Safety
        /// The processor has AVX2, and the caller is compiled for it.
        #[inline(always)]
        pub unsafe fn new() -> Self {
            Self(())
        }

        #[inline(always)]
        fn widen(self, x: __m256i, signed: bool) -> [__m256i; 2] {
            // SAFETY: see `new`.
            unsafe {
                if signed {
                    [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x)]
                } else {
                    [_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(x)]
                }
            }
        }
    }

    impl Machine for Avx2 {
        type Sums = __m256i;
        type Cols = [__m256i; 2];
        type Row = [__m256i; 2];
        const LANES: usize = 8;

        #[inline(always)]
        fn zero(self) -> __m256i {
            // SAFETY: see `new`.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        fn cols(self, from: &[Quad], signed: bool) -> [__m256i; 2] {
            let from = &from[..Self::LANES];
            // SAFETY: see `new`; 32 bytes are there.
            self.widen(unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }, signed)
        }

        #[inline(always)]
        fn row(self, quad: Quad, signed: bool) -> [__m256i; 2] {
            // SAFETY: see `new`.
            self.widen(unsafe { _mm256_set1_epi32(i32::from_ne_bytes(quad)) }, signed)
        }

        #[inline(always)]
        fn dot(self, sums: __m256i, cols: [__m256i; 2], row: [__m256i; 2], _: bool) -> __m256i {
            // SAFETY: see `new`.
            unsafe {
                let (even, odd) = (_mm256_madd_epi16(cols[0], row[0]), _mm256_madd_epi16(cols[1], row[1]));
                _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
            }
        }

        #[inline(always)]
        fn store(self, sums: __m256i, to: &mut [i32]) {
            let to = &mut to[..Self::LANES];
            // SAFETY: see `new`; there is room for 32 bytes.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), sums) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

/// Work that is compiled for each machine.
trait Work {
    fn on<M: Machine, const COLS: usize>(self, machine: M);
}

/// Does it, on what this machine has. `COLS` vectors of columns by [`ROWS`] rows fill its registers.
fn dispatch(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,bmi2,fma")]
        fn on_vnni(work: impl Work) {
            // SAFETY: this function is compiled for it.
            work.on::<_, 4>(unsafe { x86::Vnni::new() });
        }
        #[target_feature(enable = "avx2,fma")]
        fn on_avx2(work: impl Work) {
            // SAFETY: this function is compiled for it.
            work.on::<_, 1>(unsafe { x86::Avx2::new() });
        }
        if has_vnni() {
            // SAFETY: the processor has it.
            return unsafe { on_vnni(work) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has it.
            return unsafe { on_avx2(work) };
        }
    }
    work.on::<_, 1>(Portable);
}

/// Lays out as many columns as rows have elements in a panel. `rows` tells each of `depth` rows; what is beyond them in the last quad is
/// anything, and meets zeros. `flip` is a bit that all have the other way.
pub fn pack<'x>(rows: impl Fn(usize) -> &'x [u8], depth: usize, flip: u8, panel: &mut [Quad]) {
    dispatch(Pack { rows, depth, flip, panel });
}

struct Pack<'p, F> {
    rows: F,
    depth: usize,
    flip: u8,
    panel: &'p mut [Quad],
}

impl<'x, F: Fn(usize) -> &'x [u8]> Work for Pack<'_, F> {
    #[inline(always)]
    fn on<M: Machine, const COLS: usize>(self, _: M) {
        let Self { rows, depth, flip, panel } = self;
        for (at, to) in panel.chunks_exact_mut(WIDTH).take(quads(depth)).enumerate() {
            let row = |row: usize| rows((4 * at + row).min(depth - 1));
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            let to = &mut to[..a.len()];
            let (b, c, d) = (&b[..a.len()], &c[..a.len()], &d[..a.len()]);
            for (number, to) in to.iter_mut().enumerate() {
                *to = [a[number] ^ flip, b[number] ^ flip, c[number] ^ flip, d[number] ^ flip];
            }
        }
    }
}

/// What is done with sums.
pub trait Store {
    /// Takes those of a row, from column `first` of the panel on.
    fn store(&mut self, row: usize, first: usize, sums: &[i32]);
}

/// A product of rows with the columns of a panel.
pub struct Product<'a, S> {
    /// Rows of quads, one after the other.
    pub rows: &'a [Quad],
    /// Quads of each; at least one.
    pub quads: usize,
    /// As many times [`WIDTH`] quads.
    pub panel: &'a [Quad],
    /// Columns of the panel that there are.
    pub cols: usize,
    /// Whether columns are signed and rows are not; else it is the other way round.
    pub cols_signed: bool,
    /// Takes the sums.
    pub store: S,
}

impl<S: Store> Product<'_, S> {
    /// Computes it.
    pub fn run(self) {
        dispatch(self);
    }

    /// All rows, by some vectors of columns.
    #[inline(always)]
    fn strip<M: Machine, const V: usize>(&mut self, machine: M, first_col: usize) {
        let (count, mut row) = (self.rows.len() / self.quads, 0);
        while row < count {
            row += match count - row {
                ROWS.. => self.tile::<M, ROWS, V>(machine, row, first_col),
                3.. => self.tile::<M, 3, V>(machine, row, first_col),
                2 => self.tile::<M, 2, V>(machine, row, first_col),
                _ => self.tile::<M, 1, V>(machine, row, first_col),
            };
        }
    }

    #[inline(always)]
    fn tile<M: Machine, const R: usize, const V: usize>(
        &mut self,
        machine: M,
        first_row: usize,
        first_col: usize,
    ) -> usize {
        let sums = if self.cols_signed {
            self.sums::<M, R, V, true>(machine, first_row, first_col)
        } else {
            self.sums::<M, R, V, false>(machine, first_row, first_col)
        };
        let mut buffer = [0; WIDTH];
        let count = (self.cols - first_col).min(V * M::LANES);
        for (row, sums) in sums.into_iter().enumerate() {
            for (v, sums) in sums.into_iter().enumerate() {
                machine.store(sums, &mut buffer[v * M::LANES..]);
            }
            self.store.store(first_row + row, first_col, &buffer[..count]);
        }
        R
    }

    #[inline(always)]
    fn sums<M: Machine, const R: usize, const V: usize, const SIGNED: bool>(
        &self,
        machine: M,
        first_row: usize,
        first_col: usize,
    ) -> [[M::Sums; V]; R] {
        let rows: [&[Quad]; R] =
            std::array::from_fn(|row| &self.rows[(first_row + row) * self.quads..][..self.quads]);
        let mut sums = [[machine.zero(); V]; R];
        let (panel, _) = self.panel.as_chunks::<WIDTH>();
        for (k, cols) in panel[..self.quads].iter().enumerate() {
            let cols: [M::Cols; V] =
                std::array::from_fn(|v| machine.cols(&cols[first_col + v * M::LANES..], SIGNED));
            for (sums, row) in sums.iter_mut().zip(rows) {
                let row = machine.row(row[k], !SIGNED);
                for (sum, cols) in sums.iter_mut().zip(cols) {
                    *sum = machine.dot(*sum, cols, row, SIGNED);
                }
            }
        }
        sums
    }
}

impl<S: Store> Work for Product<'_, S> {
    #[inline(always)]
    fn on<M: Machine, const COLS: usize>(mut self, machine: M) {
        for first in (0..self.cols).step_by(COLS * M::LANES) {
            // Columns that are few have tiles as narrow as they are.
            match (self.cols - first).div_ceil(M::LANES).min(COLS) {
                1 => self.strip::<M, 1>(machine, first),
                2 if COLS > 1 => self.strip::<M, 2>(machine, first),
                _ => self.strip::<M, COLS>(machine, first),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Keep<'o> {
        out: &'o mut [i32],
        cols: usize,
    }

    impl Store for Keep<'_> {
        #[inline(always)]
        fn store(&mut self, row: usize, first: usize, sums: &[i32]) {
            self.out[row * self.cols + first..][..sums.len()].copy_from_slice(sums);
        }
    }

    /// On each machine that this one can be.
    fn products(
        rows: &[Quad],
        depth: usize,
        panel: &[Quad],
        cols: usize,
        cols_signed: bool,
    ) -> Vec<Vec<i32>> {
        let mut all = Vec::new();
        let quads = quads(depth);
        let mut one = |run: &dyn Fn(Product<'_, Keep<'_>>)| {
            let mut out = vec![7; rows.len() / quads * cols];
            let store = Keep { out: &mut out, cols };
            run(Product { rows, quads, panel, cols, cols_signed, store });
            all.push(out);
        };
        one(&|product| product.run());
        one(&|product| product.on::<_, 1>(Portable));
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            #[target_feature(enable = "avx2")]
            fn on_avx2(product: Product<'_, Keep<'_>>) {
                // SAFETY: this function is compiled for it.
                product.on::<_, 1>(unsafe { x86::Avx2::new() });
            }
            // SAFETY: the processor has it.
            one(&|product| unsafe { on_avx2(product) });
        }
        all
    }

    #[test]
    fn sums_are_those_of_loops() {
        let of = |len: usize, step: usize| (0..len).map(move |at| (at * step % 251) as u8);
        for (count, cols, depth) in [(1, 1, 1), (5, 64, 4), (13, 49, 27), (6, 17, 300), (7, 33, 66)] {
            let planes: Vec<u8> = of(depth * cols, 53).collect();
            let filters: Vec<u8> = of(count * depth, 37).collect();
            // Rows have zeros behind them.
            let mut rows = vec![[0u8; 4]; count * quads(depth)];
            for (row, from) in rows.chunks_exact_mut(quads(depth)).zip(filters.chunks_exact(depth)) {
                row.as_flattened_mut()[..depth].copy_from_slice(from);
            }
            for (cols_signed, flip) in [(false, 0), (true, 0), (false, 0x80), (true, 0x80)] {
                let mut panel = vec![[99u8; 4]; WIDTH * quads(depth)];
                pack(|at| &planes[at * cols..][..cols], depth, flip, &mut panel);
                let value = |x: u8, signed| if signed { i32::from(x as i8) } else { i32::from(x) };
                let expected: Vec<i32> = (0..count * cols)
                    .map(|at| {
                        let (row, col) = (at / cols, at % cols);
                        let term = |k: usize| {
                            value(filters[row * depth + k], !cols_signed)
                                * value(planes[k * cols + col] ^ flip, cols_signed)
                        };
                        (0..depth).map(term).sum()
                    })
                    .collect();
                for sums in products(&rows, depth, &panel, cols, cols_signed) {
                    assert_eq!(sums, expected, "{count} x {depth} by {cols}, {cols_signed}, {flip}");
                }
            }
        }
    }

    #[test]
    fn the_largest_elements_do_not_saturate() {
        for (cols_signed, row, col) in [(true, 255u8, -128i8 as u8), (false, -128i8 as u8, 255u8)] {
            let rows = vec![[row; 4]; 2 * 1000];
            let panel = vec![[col; 4]; WIDTH * 1000];
            for sums in products(&rows, 4000, &panel, WIDTH, cols_signed) {
                assert!(sums.iter().all(|&sum| sum == 255 * -128 * 4000), "{cols_signed}");
            }
        }
    }
}
