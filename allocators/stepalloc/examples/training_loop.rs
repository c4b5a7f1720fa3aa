//! A loop like training, its memory planned: `cargo run --release -p stepalloc --example training_loop`.

use stepalloc::{Glibc, StatisticAllocator};

#[global_allocator]
static ALLOCATOR: StatisticAllocator<Glibc> = StatisticAllocator::new(Glibc);

/// Values in each layer's activation: 64 KiB to 1 MiB.
const LAYERS: [usize; 6] = [262_144, 131_072, 131_072, 65_536, 32_768, 16_384];

/// Forward, keeping every activation; backward, freeing them last first. Not a network, but its pattern of memory.
fn train() -> f32 {
    let mut activations = vec![vec![1.0f32; LAYERS[0]]];
    for (layer, &width) in LAYERS.iter().enumerate().skip(1) {
        let input = &activations[layer - 1];
        let output = (0..width).map(|i| 0.5 * input[i] + 0.1).collect();
        activations.push(output);
    }
    let mut gradient = vec![1.0f32];
    while let Some(activation) = activations.pop() {
        gradient = activation.iter().zip(gradient.iter().cycle()).map(|(x, g)| x * g).collect();
    }
    gradient.iter().sum::<f32>() / gradient.len() as f32
}

fn main() {
    let mut result = 0.0;
    // By default the steps from 100 on are looked at, and the plan stands about ten steps later.
    for _ in 0..200 {
        let _step = stepalloc::step();
        result = train();
    }

    let statistics = stepalloc::statistics();
    let last = &statistics.last_steps;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("result       {result:.6}");
    print!("phase        {} over {}", statistics.phase, statistics.backend);
    match statistics.planned_at_step {
        Some(step) => println!(", from step {step} of {}", statistics.steps),
        None => println!(", after {} steps", statistics.steps),
    }
    println!("arena        {:.2} MiB for {} blocks", mib(statistics.arena_bytes), statistics.planned_blocks);
    println!("lower bound  {:.2} MiB: no plan is smaller", mib(statistics.lower_bound_bytes));
    println!(
        "page faults  {} a step (median; at most {}) in the last {} steps",
        last.minor_faults_median, last.minor_faults_max, last.count
    );
    println!(
        "served       {:.2} MiB from the plan, {:.2} MiB by {} instead, in these steps",
        mib(last.planned_bytes),
        mib(last.fallback_bytes),
        statistics.backend
    );
}
