//! Fourier transforms in f32 of lengths that have no other prime factors than 2, 3 and 5.
//!
//! The factors are taken off one by one, each in a pass over all elements that reads from one place and writes to another, so that
//! nothing has to be put in order (Stockham's self-sorting form, in the radices of Swarztrauber's FFTPACK, 1982). Rounding is
//! that of other libraries in f32, which keep to these passes too.

use smallvec::SmallVec;
use std::f64::consts::PI;

/// Real and imaginary part.
pub type Complex = [f32; 2];

fn plus(a: Complex, b: Complex) -> Complex {
    [a[0] + b[0], a[1] + b[1]]
}

fn minus(a: Complex, b: Complex) -> Complex {
    [a[0] - b[0], a[1] - b[1]]
}

/// `a`, and twice `b`, each by a real number.
fn mixed(a: Complex, (by, b): (f32, Complex), (by_too, c): (f32, Complex)) -> Complex {
    [a[0] + by * b[0] + by_too * c[0], a[1] + by * b[1] + by_too * c[1]]
}

/// A quarter turn to the left.
fn turned([re, im]: Complex) -> Complex {
    [-im, re]
}

/// The length's factors in the order in which they are taken off; `None` if there are others than 2 to 5.
pub fn factors(mut length: usize) -> Option<SmallVec<[usize; 32]>> {
    let mut factors = SmallVec::new();
    if length == 0 {
        return None;
    }
    while length.is_multiple_of(4) {
        factors.push(4);
        length /= 4;
    }
    if length.is_multiple_of(2) {
        factors.insert(0, 2);
        length /= 2;
    }
    for odd in [3, 5] {
        while length.is_multiple_of(odd) {
            factors.push(odd);
            length /= odd;
        }
    }
    (length == 1).then_some(factors)
}

/// Elements of scratch memory for a transform: its data, as much again, and the roots of one.
pub fn scratch(length: usize) -> usize {
    3 * length
}

/// Transforms of one length; data are the first elements of the memory it was given.
pub struct Radix<'a> {
    /// What is transformed.
    pub data: &'a mut [Complex],
    other: &'a mut [Complex],
    roots: &'a mut [Complex],
    factors: SmallVec<[usize; 32]>,
}

impl<'a> Radix<'a> {
    /// Of `length` elements, the product of `factors`, in scratch memory as [`scratch`] says.
    pub fn new(length: usize, factors: SmallVec<[usize; 32]>, scratch: &'a mut [Complex]) -> Self {
        let (data, rest) = scratch.split_at_mut(length);
        let (other, rest) = rest.split_at_mut(length);
        let roots = &mut rest[..length];
        for (at, root) in roots.iter_mut().enumerate() {
            let (sin, cos) = (2.0 * PI * at as f64 / length as f64).sin_cos();
            *root = [cos as f32, sin as f32];
        }
        Self { data, other, roots, factors }
    }

    /// Transforms the data; the inverse is divided by the length.
    pub fn run(&mut self, inverse: bool) {
        let length = self.data.len();
        let mut done = 1;
        for &factor in &self.factors {
            let left = length / (done * factor);
            for block in 0..done {
                for at in 0..left {
                    let taken = |n: usize| self.data[at + left * (n + factor * block)];
                    let mut made = [[0.0; 2]; 5];
                    combine(&taken, factor, inverse, &mut made);
                    for (n, made) in made[..factor].iter().enumerate() {
                        let [cos, sin] = self.roots[n * done * at];
                        let sin = if inverse { sin } else { -sin };
                        let [re, im] = *made;
                        let root = n > 0 && at > 0;
                        let value = if root { [re * cos - im * sin, re * sin + im * cos] } else { *made };
                        self.other[at + left * (block + done * n)] = value;
                    }
                }
            }
            std::mem::swap(&mut self.data, &mut self.other);
            done *= factor;
        }
        if inverse {
            let by = (1.0 / length as f64) as f32;
            self.data.iter_mut().for_each(|[re, im]| (*re, *im) = (*re * by, *im * by));
        }
    }
}

/// The transform of as many elements as the factor says.
fn combine(x: &dyn Fn(usize) -> Complex, factor: usize, inverse: bool, made: &mut [Complex; 5]) {
    let sign: f32 = if inverse { 1.0 } else { -1.0 };
    match factor {
        2 => (made[0], made[1]) = (plus(x(0), x(1)), minus(x(0), x(1))),
        3 => {
            let (sum, difference) = (plus(x(1), x(2)), minus(x(1), x(2)));
            let near = mixed(x(0), (-0.5, sum), (0.0, sum));
            let [re, im] = turned(difference);
            let side = sign * 0.866_025_4;
            made[0] = plus(x(0), sum);
            made[1] = plus(near, [side * re, side * im]);
            made[2] = minus(near, [side * re, side * im]);
        }
        4 => {
            let (even, odd) = (plus(x(0), x(2)), plus(x(1), x(3)));
            let (even_less, odd_less) = (minus(x(0), x(2)), minus(x(1), x(3)));
            let [re, im] = turned(odd_less);
            let side = [sign * re, sign * im];
            *made =
                [plus(even, odd), plus(even_less, side), minus(even, odd), minus(even_less, side), [0.0; 2]];
        }
        _ => {
            // Cosines and sines of 72 and 144 degrees.
            const COS: [f32; 2] = [0.309_017, -0.809_017];
            const SIN: [f32; 2] = [0.951_056_54, 0.587_785_25];
            let (outer, outer_less) = (plus(x(1), x(4)), minus(x(1), x(4)));
            let (inner, inner_less) = (plus(x(2), x(3)), minus(x(2), x(3)));
            made[0] = plus(plus(x(0), outer), inner);
            let sin = [sign * SIN[0], sign * SIN[1]];
            let near = mixed(x(0), (COS[0], outer), (COS[1], inner));
            let side = [
                sin[0] * outer_less[0] + sin[1] * inner_less[0],
                sin[0] * outer_less[1] + sin[1] * inner_less[1],
            ];
            (made[1], made[4]) = (plus(near, turned(side)), minus(near, turned(side)));
            let near = mixed(x(0), (COS[1], outer), (COS[0], inner));
            let side = [
                sin[1] * outer_less[0] - sin[0] * inner_less[0],
                sin[1] * outer_less[1] - sin[0] * inner_less[1],
            ];
            (made[2], made[3]) = (plus(near, turned(side)), minus(near, turned(side)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_small_factors_are_what_the_definition_says_both_ways() {
        for length in [1usize, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 60, 64, 225, 480] {
            let signal: Vec<Complex> =
                (0..length).map(|n| [(n as f32 * 0.7).sin(), (n % 11) as f32]).collect();
            let mut memory = vec![[0.0; 2]; scratch(length)];
            let mut radix = Radix::new(length, factors(length).expect("small factors"), &mut memory);
            radix.data.copy_from_slice(&signal);
            radix.run(false);
            for (k, got) in radix.data.iter().enumerate() {
                let mut wanted = [0.0f64; 2];
                for (n, &[re, im]) in signal.iter().enumerate() {
                    let (sin, cos) = (-2.0 * PI * (k * n % length) as f64 / length as f64).sin_cos();
                    wanted[0] += f64::from(re) * cos - f64::from(im) * sin;
                    wanted[1] += f64::from(re) * sin + f64::from(im) * cos;
                }
                let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 2e-6 * length as f64 * 11.0;
                assert!(
                    close(got[0], wanted[0]) && close(got[1], wanted[1]),
                    "{length} {k}: {got:?} {wanted:?}"
                );
            }
            radix.run(true);
            let close =
                |(a, b): (&Complex, &Complex)| (a[0] - b[0]).abs() < 1e-4 && (a[1] - b[1]).abs() < 1e-4;
            assert!(radix.data.iter().zip(&signal).all(close), "{length}");
        }
        assert!(factors(7).is_none() && factors(0).is_none() && factors(22).is_none());
    }
}
