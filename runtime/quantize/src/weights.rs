//! From f32 to 8 bits: `element = scale * (quantized - zero)`.

use stepalloc_tensor::DataType;

/// The type of quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// Signed, and symmetric unless told otherwise.
    #[default]
    QInt8,
    /// Unsigned, with a zero point of their own.
    QUInt8,
}

impl WeightType {
    /// The type of elements.
    pub(super) fn dtype(self) -> DataType {
        match self {
            Self::QInt8 => DataType::I8,
            Self::QUInt8 => DataType::U8,
        }
    }
}

/// How weights are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    pub ty: WeightType,
    /// Whether 0 is in the middle.
    pub symmetric: bool,
    /// Whether one bit is left free: sums of products of 8 bits saturate in 16 on processors without VNNI.
    pub reduced: bool,
}

impl Scheme {
    /// The tables of Gather and what else is data, not a factor: as activations are quantized.
    pub(super) const DATA: Self = Self { ty: WeightType::QUInt8, symmetric: false, reduced: false };

    /// The least and the largest quantized element.
    fn range(self) -> (f64, f64) {
        match (self.ty, self.reduced, self.symmetric) {
            (WeightType::QInt8, true, _) => (-64.0, 64.0),
            (WeightType::QInt8, false, true) => (-127.0, 127.0),
            (WeightType::QInt8, false, false) => (-128.0, 127.0),
            (WeightType::QUInt8, true, _) => (0.0, 127.0),
            (WeightType::QUInt8, false, _) => (0.0, 255.0),
        }
    }

    /// The scale and the zero point of elements from `least` to `most`.
    fn parameters(self, least: f32, most: f32) -> (f32, i32) {
        // 0 must be one of the quantized elements: padding is 0.
        let (mut least, mut most) = (f64::from(least.min(0.0)), f64::from(most.max(0.0)));
        if self.symmetric {
            most = most.max(-least);
            least = -most;
        }
        let (low, high) = self.range();
        let scale = (most - least) / (high - low);
        if scale < f64::from(f32::MIN_POSITIVE) {
            return (1.0, 0);
        }
        let zero = if self.symmetric { (low + high) / 2.0 } else { low - least / scale };
        (scale as f32, zero.round_ties_even() as i32)
    }

    fn element(self, x: f32, scale: f32, zero: i32) -> u8 {
        let quantized = (x / scale).round_ties_even() + zero as f32;
        match self.ty {
            WeightType::QInt8 => quantized.clamp(-128.0, 127.0) as i8 as u8,
            WeightType::QUInt8 => quantized.clamp(0.0, 255.0) as u8,
        }
    }
}

/// Elements of 8 bits, with the scale and zero point of each channel.
#[derive(Debug, PartialEq)]
pub(super) struct Quantized {
    pub elements: Vec<u8>,
    pub scales: Vec<f32>,
    pub zeros: Vec<i32>,
}

/// Quantizes elements in C's order: `channels` channels, whose elements lie in runs of `inner`. `None` where one is not finite.
pub(super) fn quantize(elements: &[f32], channels: usize, inner: usize, scheme: Scheme) -> Option<Quantized> {
    if !elements.iter().all(|x| x.is_finite()) {
        return None;
    }
    let (channels, inner) = (channels.max(1), inner.max(1));
    let mut bounds = vec![(0.0f32, 0.0f32); channels];
    for (run, some) in elements.chunks(inner).enumerate() {
        let (least, most) = &mut bounds[run % channels];
        for &x in some {
            (*least, *most) = (least.min(x), most.max(x));
        }
    }
    let parameters: Vec<_> = bounds.iter().map(|&(least, most)| scheme.parameters(least, most)).collect();
    let mut quantized = Vec::with_capacity(elements.len());
    for (run, some) in elements.chunks(inner).enumerate() {
        let (scale, zero) = parameters[run % channels];
        quantized.extend(some.iter().map(|&x| scheme.element(x, scale, zero)));
    }
    let (scales, zeros) = parameters.into_iter().unzip();
    Some(Quantized { elements: quantized, scales, zeros })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: Scheme = Scheme { ty: WeightType::QInt8, symmetric: true, reduced: false };

    fn signed(quantized: &Quantized) -> Vec<i8> {
        quantized.elements.iter().map(|&x| x as i8).collect()
    }

    #[test]
    fn signed_weights_are_symmetric() {
        let made = quantize(&[-1.0, 0.0, 0.5, 2.54], 1, 4, SIGNED).expect("finite elements");
        assert_eq!((signed(&made), made.zeros.as_slice()), (vec![-50, 0, 25, 127], &[0][..]));
        assert!((made.scales[0] - 0.02).abs() < 1e-7, "{made:?}");
    }

    #[test]
    fn reduced_ones_leave_a_bit_free() {
        let made = quantize(&[-3.0, 1.5, 3.0], 1, 3, Scheme { reduced: true, ..SIGNED }).expect("finite");
        assert_eq!(signed(&made), [-64, 32, 64]);
        let unsigned = Scheme { ty: WeightType::QUInt8, symmetric: false, reduced: true };
        let made = quantize(&[0.0, 127.0], 1, 2, unsigned).expect("finite");
        assert_eq!((made.elements, made.scales), (vec![0, 127], vec![1.0]));
    }

    #[test]
    fn unsigned_weights_have_a_zero_point_and_zero_stays_zero() {
        let made = quantize(&[-1.0, 0.0, 4.0], 1, 3, Scheme::DATA).expect("finite elements");
        assert_eq!(made.zeros, [51]);
        assert_eq!(made.elements, [0, 51, 255]);
        // All above 0: 0 is in the range all the same.
        let made = quantize(&[10.0, 255.0], 1, 2, Scheme::DATA).expect("finite elements");
        assert_eq!((made.elements, made.zeros), (vec![10, 255], vec![0]));
    }

    #[test]
    fn each_channel_has_its_scale_on_any_axis() {
        // 2 x 3: columns are channels, then rows.
        let elements = [1.0, 20.0, 300.0, -2.0, 10.0, 150.0];
        let columns = quantize(&elements, 3, 1, SIGNED).expect("finite elements");
        assert_eq!(signed(&columns), [64, 127, 127, -127, 64, 64]);
        assert_eq!(columns.scales.len(), 3);
        let rows = quantize(&elements, 2, 3, SIGNED).expect("finite elements");
        assert_eq!(signed(&rows), [0, 8, 127, -2, 8, 127]);
    }

    #[test]
    fn nothing_and_only_zeros_are_quantized_and_what_is_not_finite_is_not() {
        for elements in [&[][..], &[0.0, 0.0]] {
            let made = quantize(elements, 1, 2, SIGNED).expect("finite elements");
            assert_eq!((made.scales, made.zeros), (vec![1.0], vec![0]));
        }
        assert_eq!(quantize(&[1.0, f32::NAN], 1, 2, SIGNED), None);
        assert_eq!(quantize(&[1.0, f32::INFINITY], 1, 2, SIGNED), None);
    }
}
