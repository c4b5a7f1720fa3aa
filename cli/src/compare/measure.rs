//! One run of the program: what it took, and how it ended.

use std::fs;
use std::hint;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::marks::{Marks, Steps};
use crate::os::{self, Ended, Forward, How, Resident, Usage};
use crate::run;

/// Between two looks at what is resident.
const GLANCE: Duration = Duration::from_millis(20);
/// A stream is read so long after the program's end.
const AFTER_THE_END: Duration = Duration::from_millis(500);
/// Additions of the yardstick: some 10 µs, half a percent of the time between two,
const YARDSTICK: u64 = 20_000;
/// which is less than a slow phase takes: of 2 ms and the next 2 ms the speeds go along with each other by 0.8, of such that
/// are 100 ms apart by 0.3.
const BETWEEN_YARDSTICKS: Duration = Duration::from_millis(2);
/// A speed that is so many times the usual was none.
const IMPOSSIBLE: f64 = 3.0;
/// Looks after which a library that was not seen is not there.
const ENOUGH: usize = 5;
/// Characters of a program's last line that are told.
const MOST_TOLD: usize = 120;
/// Of what a program writes to standard error the end is kept, in case it fails.
const KEPT: usize = 4096;

/// What a run took: the process and those it has waited for.
#[derive(Debug, Clone)]
pub struct Run {
    /// From its start to its end.
    pub seconds: f64,
    /// CPU time of all threads, user and system.
    pub cpu_seconds: f64,
    /// The system's part of it.
    pub system_seconds: f64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Resident bytes of the process in the middle of its newer half; `None` where it was too short to be seen.
    pub rss_bytes: Option<u64>,
    /// Resident bytes at most, of the largest process; `None` where it was too short to be seen.
    pub hwm_bytes: Option<u64>,
    /// The steps of the process that marked most; `None` where none did.
    pub steps: Option<Steps>,
    /// What the yardstick took meanwhile, in seconds; `None` where the run was too short for it.
    pub yardstick_seconds: Option<f64>,
    /// Whether the library that was to be in front of its malloc was; `None` where that is not known.
    pub preloaded: Option<bool>,
    /// How it ended.
    pub how: How,
    /// The last line on standard error, where that was read.
    pub last_line: String,
    /// What the statistic allocator says of the process that made most steps.
    pub statistics: Option<Value>,
}

/// Where the program's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Where ours goes.
    Ours,
    /// Nowhere.
    Nowhere,
}

impl Run {
    /// What is handed on of it.
    pub fn ended(&self) -> Ended {
        let usage = Usage {
            cpu_seconds: self.cpu_seconds,
            system_seconds: self.system_seconds,
            minor_faults: self.minor_faults,
        };
        Ended { how: self.how, peak_bytes: self.hwm_bytes.unwrap_or(0), usage }
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        let mut run = json!({
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "system_seconds": self.system_seconds,
            "minor_faults": self.minor_faults,
            "vm_rss_bytes": self.rss_bytes,
            "vm_hwm_bytes": self.hwm_bytes,
            "steps": self.steps.map(|steps| steps.count),
            "step_seconds": self.steps.map(|steps| steps.seconds),
            "yardstick_seconds": self.yardstick_seconds,
        });
        match self.how {
            How::Exit(status) => run["status"] = json!(status),
            How::Signal(signal) => run["signal"] = json!(signal),
        }
        if let Some(statistics) = &self.statistics {
            run["statistics"] = statistics.clone();
        }
        run
    }
}

/// How a process ended, in words.
pub fn ended(how: How) -> String {
    match how {
        How::Exit(status) => format!("ended with status {status}"),
        How::Signal(signal) => format!("was killed by signal {signal}"),
    }
}

/// Where our library writes while a program runs, and the library that is to be in front of its malloc, if it is another.
pub struct Places<'a> {
    /// What the statistic allocator measured.
    pub figures: &'a Path,
    /// In which processes it is.
    pub attached: &'a Path,
    /// Where the times of steps are, if they are taken.
    pub marks: Option<&'a Marks>,
    /// The other library.
    pub library: Option<&'a Path>,
    /// Whether it is ours.
    pub is_ours: bool,
}

/// Runs a prepared command to its end.
pub fn run(command: &mut Command, places: &Places, signals: &Forward, streams: Streams) -> io::Result<Run> {
    let _ = fs::remove_file(places.figures);
    let _ = fs::remove_file(places.attached);
    if streams == Streams::Nowhere {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    }
    let start = Instant::now();
    let mut child = command.spawn()?;
    let pid = child.id();
    signals.to(pid);
    let tail = Tail::of(child.stderr.take());
    let yardstick = Yardstick::beside();
    let (stop, stopped) = mpsc::channel::<()>();
    let library = places.library.map(Path::to_owned);
    let watch = thread::spawn(move || {
        let (mut seen, mut peak, mut mapped) = (Vec::new(), None, false);
        let is_mapped = |library: &PathBuf| {
            fs::read_to_string(format!("/proc/{pid}/maps"))
                .is_ok_and(|maps| maps.contains(library.to_string_lossy().as_ref()))
        };
        while stopped.recv_timeout(GLANCE) == Err(RecvTimeoutError::Timeout) {
            let Some(resident) = Resident::of(pid) else { continue };
            seen.push(resident.bytes);
            let tree = os::descendants(pid).into_iter().filter_map(Resident::of).chain([resident]);
            peak = tree.map(|resident| resident.most_bytes).max().max(peak);
            mapped = mapped || library.as_ref().is_some_and(is_mapped);
        }
        let preloaded = library.filter(|_| mapped || seen.len() >= ENOUGH).map(|_| mapped);
        (middle_of_newer_half(&seen), peak, preloaded)
    });
    let ended = os::wait(pid)?;
    let seconds = start.elapsed().as_secs_f64();
    let yardstick_seconds = yardstick.read();
    drop(stop);
    let (rss_bytes, peak_seen, preloaded) = watch.join().unwrap_or_default();
    // The system's figure is no less than what we had resident when we started the process.
    let ours = Resident::of(std::process::id()).map_or(0, |resident| resident.most_bytes);
    let hwm_bytes = if ended.peak_bytes <= ours { peak_seen } else { Some(ended.peak_bytes) };
    let attached = || run::was_loaded(places.attached, pid);
    let lines = fs::read_to_string(places.figures).unwrap_or_default();
    let processes = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(Run {
        seconds,
        cpu_seconds: ended.usage.cpu_seconds,
        system_seconds: ended.usage.system_seconds,
        minor_faults: ended.usage.minor_faults,
        rss_bytes,
        hwm_bytes,
        steps: places.marks.and_then(Marks::take),
        yardstick_seconds,
        preloaded: if places.is_ours { Some(attached()) } else { preloaded },
        how: ended.how,
        last_line: last_line(&tail.read()),
        statistics: processes.max_by_key(|process| process["steps"].as_u64()),
    })
}

/// Work that is always the same, done again and again while a program runs, by which the machine's speed is known: where two
/// virtual processors are the threads of one, each is half as fast while the other works, which the CPU time of both hides.
struct Yardstick {
    stop: mpsc::Sender<()>,
    /// Speeds, in works a second.
    measures: thread::JoinHandle<Vec<f64>>,
}

impl Yardstick {
    fn beside() -> Yardstick {
        let (stop, stopped) = mpsc::channel::<()>();
        let measures = thread::spawn(move || {
            let mut speeds = Vec::new();
            while stopped.recv_timeout(BETWEEN_YARDSTICKS) == Err(RecvTimeoutError::Timeout) {
                let start = os::thread_seconds();
                let mut sum = 0;
                (0..YARDSTICK).for_each(|number| sum = hint::black_box(sum + number));
                speeds.push(1.0 / (os::thread_seconds() - start).max(1e-9));
            }
            speeds
        });
        Yardstick { stop, measures }
    }

    /// Of the mean speed, since a program is done when the speeds at all times are enough together.
    fn read(self) -> Option<f64> {
        drop(self.stop);
        mean_seconds(self.measures.join().unwrap_or_default())
    }
}

/// Seconds at the mean of some speeds, without those that no machine has: of a hundred thousand works the clock of a virtual
/// machine stands still during a few.
fn mean_seconds(mut speeds: Vec<f64>) -> Option<f64> {
    speeds.sort_unstable_by(f64::total_cmp);
    let most = IMPOSSIBLE * speeds.get(speeds.len() / 2)?;
    speeds.truncate(speeds.partition_point(|&speed| speed < most));
    Some(speeds.len() as f64 / speeds.iter().sum::<f64>())
}

fn middle_of_newer_half(seen: &[u64]) -> Option<u64> {
    let mut newer = seen[seen.len() / 2..].to_vec();
    newer.sort_unstable();
    newer.get(newer.len() / 2).copied()
}

/// The end of what is written to a stream, which is read by a thread of its own.
struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    closed: mpsc::Receiver<()>,
}

impl Tail {
    fn of(stream: Option<impl Read + Send + 'static>) -> Tail {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (close, closed) = mpsc::channel();
        let shared = Arc::clone(&kept);
        thread::spawn(move || {
            let _close = close;
            let (mut stream, mut part) = (stream, [0; 1 << 16]);
            while let Some(stream) = &mut stream {
                match stream.read(&mut part) {
                    Ok(0) => return,
                    Ok(count) => {
                        let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                        kept.extend_from_slice(&part[..count]);
                        let more = kept.len().saturating_sub(KEPT);
                        kept.drain(..more);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        Tail { kept, closed }
    }

    /// What was kept when the stream was closed; a process that goes on in the background may have it open for ever.
    fn read(self) -> Vec<u8> {
        let _ = self.closed.recv_timeout(AFTER_THE_END);
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// As much of the last line as has a place in a table, without what moves a terminal's cursor.
fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split(['\n', '\r']).rev();
    let plain = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
    let line = lines.map(plain).find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().chars().take(MOST_TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_much_is_kept() {
        let much = [vec![b'x'; 1 << 20], b"\nthe last line\n\n".to_vec()].concat();
        let kept = Tail::of(Some(io::Cursor::new(much))).read();
        assert_eq!((kept.len(), last_line(&kept)), (KEPT, "the last line".to_owned()));
        assert_eq!(last_line(b""), "");
        assert_eq!(last_line(b"first\r 9 %\r\tlast\x07\r\n"), "last");
        assert!(Tail::of(None::<io::Empty>).read().is_empty());
    }

    #[test]
    fn a_clock_that_stood_still_is_not_the_yardsticks() {
        assert_eq!(mean_seconds(vec![]), None);
        assert_eq!(mean_seconds(vec![4.0]), Some(0.25));
        assert_eq!(mean_seconds(vec![1.0, 1e9, 2.0, 3.0]), Some(0.5));
    }

    #[test]
    fn the_yardstick_is_about_as_long_each_time() {
        let measured = || {
            let yardstick = Yardstick::beside();
            thread::sleep(BETWEEN_YARDSTICKS * 20);
            yardstick.read().expect("there was time for it")
        };
        let (one, other) = (measured(), measured());
        assert!((1e-6..1e-3).contains(&one) && (0.1..10.0).contains(&(one / other)), "{one} and {other}");
    }

    #[test]
    fn residence_is_that_of_the_newer_half() {
        assert_eq!(middle_of_newer_half(&[]), None);
        assert_eq!(middle_of_newer_half(&[9, 9, 9, 1, 5, 3]), Some(3));
    }
}
