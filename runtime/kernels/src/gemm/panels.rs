//! A right factor that a few rows are multiplied with again and again, as states are in each step of a recurrent layer: columns lie
//! side by side in panels, row by row, and are read as vectors, one behind the other.

use crate::strided::{Axis, copy};

/// Columns of a panel, but for the last one, which may have fewer: the four vectors that are summed at a time where they are widest.
pub const WIDTH: usize = 64;

/// Lays a matrix of `depth` rows, given column by column, out in panels, as many elements.
pub fn lay_out<T: Copy + Default + Send + Sync>(columns: &[T], depth: usize, panels: &mut [T]) {
    let whole = columns.len().checked_div(WIDTH * depth).unwrap_or(0);
    let begin = whole * WIDTH * depth;
    let rest = (columns.len() - begin).checked_div(depth).unwrap_or(0);
    for (count, width, begin) in [(whole, WIDTH, 0), (1, rest, begin)] {
        let axes = [
            Axis { length: count, from: (WIDTH * depth) as isize, to: WIDTH * depth },
            Axis { length: depth, from: 1, to: width },
            Axis { length: width, from: depth as isize, to: 1 },
        ];
        copy(&axes, columns, begin, panels, begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_lie_side_by_side() {
        for (depth, cols) in [(3, 64), (5, 130), (1, 7), (70, 1), (0, 4), (4, 0), (33, 200)] {
            let columns: Vec<u32> = (0..depth * cols).map(|n| n as u32).collect();
            let mut panels = vec![u32::MAX; columns.len()];
            lay_out(&columns, depth, &mut panels);
            for col in 0..cols {
                let (panel, at) = (col / WIDTH, col % WIDTH);
                let width = WIDTH.min(cols - panel * WIDTH);
                for row in 0..depth {
                    let place = panel * WIDTH * depth + row * width + at;
                    assert_eq!(panels[place], columns[col * depth + row], "{depth} x {cols}: {row}, {col}");
                }
            }
        }
    }
}
