//! A small language model trained with candle, for benches/others.py: an ordinary program on the system's allocator.
//!
//! `candle STEPS` prints the JSON line that `benches/loops.py` describes.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::ops::softmax_last_dim;
use candle_nn::{AdamW, Optimizer, ParamsAdamW, loss};
use std::ffi::c_int;
use std::fs;

const WIDTH: usize = 128;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const VOCABULARY: usize = 512;
const ROWS: usize = 4;
const LENGTH: usize = 64;

/// SplitMix64: candle cannot be given a seed on the CPU.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

struct Layer {
    /// Queries, keys and values; the way out; the wide layer's two.
    weights: [Tensor; 4],
}

struct Model {
    embedding: Tensor,
    layers: Vec<Layer>,
    output: Tensor,
}

impl Model {
    fn new(random: &mut Random, parameters: &mut Vec<Var>) -> Result<Model> {
        let mut matrix = |rows: usize, columns: usize| -> Result<Tensor> {
            let bound = (3.0 / rows as f32).sqrt();
            let weights: Vec<f32> = (0..rows * columns).map(|_| random.signed() * bound).collect();
            let weights = Var::from_vec(weights, (rows, columns), &Device::Cpu)?;
            parameters.push(weights.clone());
            Ok(weights.as_tensor().clone())
        };
        let mut layer = || -> Result<Layer> {
            let weights = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
                .map(|(rows, columns)| matrix(rows, columns));
            let [into, out, wide, narrow] = weights;
            Ok(Layer { weights: [into?, out?, wide?, narrow?] })
        };
        let layers = (0..LAYERS).map(|_| layer()).collect::<Result<_>>()?;
        Ok(Model { embedding: matrix(VOCABULARY, WIDTH)?, layers, output: matrix(WIDTH, VOCABULARY)? })
    }

    /// A row of scores for each token.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut x = self.embedding.index_select(tokens, 0)?;
        for Layer { weights: [into, out, wide, narrow] } in &self.layers {
            x = (&x + attention(&normal(&x)?.matmul(into)?)?.matmul(out)?)?;
            x = (&x + normal(&x)?.matmul(wide)?.gelu()?.matmul(narrow)?)?;
        }
        normal(&x)?.matmul(&self.output)
    }
}

/// Each token with mean 0 and variance 1.
fn normal(x: &Tensor) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
    centred.broadcast_div(&(variance + 1e-5)?.sqrt()?)
}

fn attention(joined: &Tensor) -> Result<Tensor> {
    let joined = joined.reshape((ROWS, LENGTH, 3, HEADS, WIDTH / HEADS))?.permute((2, 0, 3, 1, 4))?;
    let [q, k, v] = [0, 1, 2].map(|part| joined.get(part).and_then(|part| part.contiguous()));
    let scores = (q?.matmul(&k?.t()?.contiguous()?)? * (HEADS as f64 / WIDTH as f64).sqrt())?;
    softmax_last_dim(&scores)?.matmul(&v?)?.transpose(1, 2)?.reshape((ROWS * LENGTH, WIDTH))
}

/// Minor page faults and CPU milliseconds of the process.
fn used() -> (i64, f64) {
    // SAFETY: zeros are a rusage, and the system writes one.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    (usage.ru_minflt, ms(usage.ru_utime) + ms(usage.ru_stime))
}

/// Whether a preloaded stepalloc serves a plan.
fn planned() -> bool {
    // SAFETY: the name is a C string; where the symbol is, it is a function of this type.
    unsafe {
        let phase = libc::dlsym(libc::RTLD_DEFAULT, c"stepalloc_phase".as_ptr());
        !phase.is_null() && std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> c_int>(phase)() == 2
    }
}

fn mebibytes(key: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

fn main() -> Result<()> {
    let steps: usize = std::env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(200);
    let (mut random, mut parameters) = (Random(7), Vec::new());
    let model = Model::new(&mut random, &mut parameters)?;
    let mut optimizer = AdamW::new(parameters, ParamsAdamW::default())?;
    let (mut faults, mut times) = (Vec::new(), Vec::new());
    let (mut checksum, mut planned_after) = (0u32, None);
    for step in 0..steps {
        if step == steps / 2 {
            // VmHWM starts anew.
            let _ = fs::write("/proc/self/clear_refs", "5");
        }
        let before = used();
        let tokens: Vec<u32> =
            (0..ROWS * LENGTH).map(|_| (random.bits() % VOCABULARY as u64) as u32).collect();
        let tokens = Tensor::from_vec(tokens, ROWS * LENGTH, &Device::Cpu)?;
        let loss = loss::cross_entropy(&model.forward(&tokens)?, &tokens)?;
        optimizer.backward_step(&loss)?;
        let after = used();
        faults.push(after.0 - before.0);
        times.push(after.1 - before.1);
        checksum = checksum.rotate_left(1) ^ loss.to_dtype(DType::F32)?.to_scalar::<f32>()?.to_bits();
        if planned_after.is_none() && planned() {
            planned_after = Some(step + 1);
        }
    }
    let (faults, times) = (&mut faults[steps / 2..], &mut times[steps / 2..]);
    faults.sort_unstable();
    times.sort_unstable_by(f64::total_cmp);
    println!(
        "{}",
        serde_json::json!({
            "checksum": format!("{checksum:08x}"),
            "planned_after": planned_after,
            "minor_faults_median": faults[faults.len() / 2],
            "minor_faults_max": faults.last(),
            "cpu_ms": times[times.len() / 2],
            "vm_rss_mib": mebibytes("VmRSS"),
            "vm_hwm_mib": mebibytes("VmHWM"),
        })
    );
    Ok(())
}
