//! Files: what is read, what is refused with file and line, and that junk never panics.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use stepalloc_planner::{Event, Input, Key, Planner, csv, read_any, trace};

/// A file that is removed again.
struct Temporary(PathBuf);

impl Temporary {
    fn new(content: &[u8]) -> Temporary {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("stepalloc-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::write(&path, content).expect("a temporary file");
        Temporary(path)
    }

    /// What is wrong with the file as CSV or trace, without its directory.
    fn error(&self) -> String {
        let error = read_any(&self.0, 1).expect_err("a refusal").to_string();
        error.replace(&self.0.display().to_string(), "FILE")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn error(text: &str) -> String {
    Temporary::new(text.as_bytes()).error()
}

fn zipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

const BUFFERS: &str = "size,id,lower,upper,alignment,comment\n 10 ,b,0,4,16,x\n20,a,2,6,,\n\n30,7,4,4,1,z\n";

const TRACE: &str = "# memtrace v1 name=toy min=1 steps=2 threads=2 columns=op,thread,id,size,align
L,0,0,1000,0
S,0,0,0,0
a,0,1,100,0
S,0,1,5,10
f,0,1,,
a,1,2,100,64
r,0,2,200,0
a,0,3,50,0
f,1,2,,
f,0,3,,
S,0,2,9,20
a,0,4,1,0
";

#[test]
fn buffers_are_read_by_column_name_and_written_with_offsets() {
    for content in [BUFFERS.as_bytes().to_vec(), zipped(BUFFERS)] {
        let buffers = csv::read(&Temporary::new(&content).0).expect("buffers");
        assert_eq!([0, 1, 2].map(|index| buffers.id(index)), ["b", "a", "7"]);
        assert_eq!(buffers.problem.blocks.iter().map(|block| block.align).collect::<Vec<_>>(), [16, 1, 1]);
        let plan = Planner::new().plan(&buffers.problem).expect("a plan");
        let mut out = Vec::new();
        buffers.write(&mut out, &plan).expect("memory");
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("id,lower,upper,size,alignment,offset\nb,0,4,10,16,"), "{text}");
        let again = csv::read(&Temporary::new(text.as_bytes()).0).expect("what was written");
        assert_eq!(again.offsets.as_deref(), Some(&plan.offsets[..]));
        assert_eq!((again.ids, again.problem), (buffers.ids, buffers.problem));
    }
}

#[test]
fn ids_that_are_numbers_name_the_blocks() {
    let buffers = csv::read(&Temporary::new(b"id,lower,upper,size\n9,0,1,5\n4,0,1,5\n").0).expect("buffers");
    assert_eq!(buffers.problem.blocks.iter().map(|block| block.id).collect::<Vec<_>>(), [9, 4]);
    let plan = Planner::new().plan(&buffers.problem).expect("a plan");
    let mut out = Vec::new();
    csv::write(&mut out, &buffers.problem, &plan).expect("memory");
    assert!(out.starts_with(b"id,lower,upper,size,offset\n9,0,1,5,"));
}

#[test]
fn wrong_buffers_are_refused_with_their_line() {
    let header = "id,lower,upper,size\n";
    let cases = [
        ("", "FILE: the file is empty; expected a header like id,lower,upper,size"),
        ("\n \n\n", "FILE: the file is empty; expected a header like id,lower,upper,size"),
        (header, "FILE: there are no buffers; expected at least one line below the header"),
        (
            "id,lower,size\n1,2,3\n",
            "FILE:1: no column is named upper; expected a header like id,lower,upper,size",
        ),
        (
            "id,lower,upper,size,id\n",
            "FILE:1: two columns are named id; expected a header like id,lower,upper,size",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(error(text), message);
    }
    let rows = [
        ("1,0,x,5", "FILE:3: the upper \"x\" is not a number; expected a whole number from 0 to 2^64 - 1"),
        ("1,0,-1,5", "FILE:3: the upper \"-1\" is not a number; expected a whole number from 0 to 2^64 - 1"),
        ("1,5,4,5", "FILE:3: upper 4 is below lower 5; expected lower <= upper"),
        ("0,0,1,5", "FILE:3: the id \"0\" was there before; expected every id once"),
        (",0,1,5", "FILE:3: the id is empty; expected any text without a comma"),
        ("1,0,1", "FILE:3: 3 fields; expected 4 as in the header"),
        (
            "1,0,1,18446744073709551615",
            "FILE:3: the sizes up to this line overflow; expected less than 2^64 bytes in all",
        ),
    ];
    for (row, message) in rows {
        assert_eq!(error(&format!("{header}0,0,1,5\n{row}\n")), message);
    }
}

#[test]
fn a_missing_file_is_named() {
    let message = csv::read("/nonexistent/buffers.csv").expect_err("no such file").to_string();
    assert!(message.starts_with("/nonexistent/buffers.csv: cannot be read: "), "{message}");
}

#[test]
fn a_trace_is_read_and_merged() {
    for content in [TRACE.as_bytes().to_vec(), zipped(TRACE)] {
        let file = Temporary::new(&content);
        let Ok(Input::Trace { trace, steps }) = read_any(&file.0, 100) else { panic!("a trace") };
        assert_eq!(
            (trace.name.as_str(), trace.threads, trace.already.len(), trace.already[0].1),
            ("toy", 2, 1, 1000)
        );
        assert_eq!((trace.steps.len(), trace.unfinished), (2, 1));
        assert_eq!(trace.steps[1].micros, 10);
        assert_eq!(
            trace.steps[1].events[1..4],
            [
                Event::Allocate { block: 2, size: 100, align: 64, moved_from: None },
                Event::Free { block: 2 },
                Event::Allocate { block: 2, size: 200, align: 16, moved_from: Some(2) },
            ]
        );
        // Step 0 is left out, and so is what is smaller than 100 bytes.
        assert_eq!(steps.keys, [Key { size: 100, align: 64, nth: 0 }, Key { size: 200, align: 16, nth: 0 }],);
        assert_eq!(
            steps.problem.blocks.iter().map(|b| (b.lower, b.upper)).collect::<Vec<_>>(),
            [(0, 2), (1, 2)]
        );
    }
}

#[test]
fn wrong_traces_are_refused_with_their_line() {
    let head = "# memtrace v1 name=x columns=op,thread,id,size,align\n";
    let cases = [
        (
            "",
            "FILE: no complete step in 1 lines; expected at least two step boundaries, lines that begin with S",
        ),
        ("a,0,1,5,0\n", "FILE:2: an event before the first step; expected a line S,0,0,calls,usec before it"),
        ("S,0,1,0,0\n", "FILE:2: step 1 starts here; expected step 0"),
        ("S,0,0,0,0\nf,0,1,,\n", "FILE:3: block 1 is freed, but not alive; expected its a or L before"),
        (
            "S,0,0,0,0\nr,0,1,5,0\n",
            "FILE:3: block 1 is reallocated, but not alive; expected its a or L before",
        ),
        (
            "S,0,0,0,0\na,0,1,5,0\na,0,1,5,0\n",
            "FILE:4: block 1 is allocated, but still alive; expected its f before, or a new id",
        ),
        (
            "S,0,0,0,0\na,0,1,5,3\n",
            "FILE:3: the align 3 is not a power of two; expected 0, or a power of two",
        ),
        (
            "S,0,0,0,0\nq,0,1,5,3\n",
            "FILE:3: unknown event \"q\"; expected L, S, a, r or f in the first column",
        ),
        (
            "S,0,0,0,0\na,0,,5,0\n",
            "FILE:3: the id \"\" is not a number; expected a whole number from 0 to 2^32 - 1",
        ),
        (
            "S,0,0,0,0\nL,0,1,5,0\n",
            "FILE:3: a block alive before step 0 within a step; expected all L before the first S",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(error(&format!("{head}{text}")), message);
    }
    assert_eq!(
        error("# memtrace v1 columns=op,id\n"),
        "FILE:1: the columns are op,id; expected columns=op,thread,id,size,align"
    );
    let plain = Temporary::new(BUFFERS.as_bytes());
    let message = trace::read(&plain.0).expect_err("no trace").to_string();
    assert!(
        message.ends_with(":1: this is no memtrace; expected a first line \"# memtrace v1 name=...\""),
        "{message}"
    );
}

#[test]
fn a_file_cut_short_is_refused() {
    let whole = zipped(TRACE);
    let message = Temporary::new(&whole[..whole.len() - 20]).error();
    assert!(message.contains("cannot be read after line"), "{message}");
}

#[test]
fn a_line_without_end_is_refused() {
    let message = Temporary::new(&vec![b'x'; 1 << 20]).error();
    assert_eq!(
        message,
        "FILE:1: the line is longer than 65536 bytes; expected a text file with one record a line, plain or gzip'ed"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn junk_never_panics(cut in 0usize..400, junk in prop::collection::vec(any::<u8>(), 0..8), traced in any::<bool>(), zip in any::<bool>()) {
        let text = if traced { TRACE } else { BUFFERS };
        let mut bytes = if zip { zipped(text) } else { text.as_bytes().to_vec() };
        let at = cut % bytes.len();
        let end = (at + junk.len()).min(bytes.len());
        bytes.splice(at..end, junk);
        if let Ok(input) = read_any(&Temporary::new(&bytes).0, 1) {
            let _ = Planner::quick().plan(input.problem());
        }
    }
}
