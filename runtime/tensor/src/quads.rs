//! Bytes of matrices as products of bytes take them: four elements of a row or column side by side.
//!
//! Dot products of processors add four products of bytes at a time (x86-64's VNNI). So rows are filled up to whole quads, and columns
//! lie in *panels*: a quad of each of [`WIDTH`] columns, then the next quads of them.

/// Four elements of a row or column.
pub type Quad = [u8; 4];
/// Columns of a panel.
pub const WIDTH: usize = 64;

/// Quads of a row or column of `depth` elements.
pub const fn quads(depth: usize) -> usize {
    depth.div_ceil(4)
}

/// Bytes of the panels of `cols` columns.
pub const fn panel_bytes(cols: usize, depth: usize) -> usize {
    cols.div_ceil(WIDTH) * quads(depth) * WIDTH * 4
}

/// Rows of `depth` elements, each filled up with zeros. `flip` is a bit that all have the other way.
pub fn rows(elements: &[u8], depth: usize, flip: u8) -> Vec<u8> {
    let mut made = vec![0; elements.len() / depth.max(1) * 4 * quads(depth)];
    let rows = made.chunks_exact_mut((4 * quads(depth)).max(1)).zip(elements.chunks_exact(depth.max(1)));
    rows.for_each(|(to, row)| to.iter_mut().zip(row).for_each(|(to, &x)| *to = x ^ flip));
    made
}

/// Columns in panels; `element` tells each by its row and column, and what is not there is 0.
pub fn panels(cols: usize, depth: usize, element: impl Fn(usize, usize) -> u8) -> Vec<u8> {
    let quads = quads(depth);
    let mut made = vec![0; panel_bytes(cols, depth)];
    for (number, panel) in made.chunks_exact_mut((4 * quads * WIDTH).max(1)).enumerate() {
        for (at, quad) in panel.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (row, col) = (at / WIDTH * 4, number * WIDTH + at % WIDTH);
            let there = |row: usize| row < depth && col < cols;
            *quad = std::array::from_fn(|k| if there(row + k) { element(row + k, col) } else { 0 });
        }
    }
    made
}
