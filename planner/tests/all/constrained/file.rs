//! CSV: constraints are read and written back, minimalloc's dialects are understood, and errors have their line.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use stepalloc_planner::{Buffers, Constraints, Fixed, Planner, Problem, ReadError, csv, verify};

use super::cases::{Extent, gap, in_place, inside, problem, problems};

/// Reads a file of this content.
fn read(content: &[u8]) -> Result<Buffers, ReadError> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name =
        format!("stepalloc-constrained-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path: PathBuf = std::env::temp_dir().join(name);
    fs::write(&path, content).expect("a temporary file");
    let read = csv::read(&path);
    fs::remove_file(&path).expect("our own file");
    read
}

fn error(content: &str) -> String {
    let message = read(content.as_bytes()).expect_err("a refusal").to_string();
    message.rsplit_once("stepalloc-constrained-").map_or(message.clone(), |(_, end)| {
        end.split_once(':').map_or(message.clone(), |(_, what)| what.to_owned())
    })
}

/// The constraints in the order that files keep, every one once.
fn sorted(problem: &Problem) -> Constraints {
    let mut constraints = problem.constraints.clone();
    constraints.fixed.sort_by_key(|fixed| fixed.block);
    constraints.fixed.dedup();
    constraints.gaps.sort_by_key(|gap| (gap.block, gap.lower));
    constraints.inside.sort_by_key(|view| view.block);
    constraints.inside.dedup();
    constraints.in_place.sort_by_key(|pair| pair.first);
    constraints
}

#[test]
fn the_dialects_of_minimalloc_say_the_same() {
    let expected = problem(&[(1, 8, 10, 1), (2, 3, 5, 1)], None).with_constraints(gap(0, 3, 5, Some((2, 6))));
    for text in [
        "id,lower,upper,size,gaps,hint\n100,1,8,10,3-5@2:6,7\n101,2,3,5,,-1\n",
        "buffer,begin,upper,size,gaps\n100,1,8,10,3-5@2:6\n101,2,3,5,\n",
        "buffer_id,start,end,size,gaps\n100,1,7,10,3-4@2:6\n101,2,2,5, \n",
        "\u{feff}SIZE,End,ID,Begin,Gaps\r\n10,7,100,1,3-4@2:6\r\n\r\n5,2,101,2,\r\n",
    ] {
        assert_eq!(read(text.as_bytes()).expect("buffers").problem, expected, "{text}");
    }
}

#[test]
fn several_gaps_stand_in_any_order() {
    let buffers = read(b"id,lower,upper,size,gaps\n1,0,20,10,12-14  3-5@0:1 5-6\n").expect("buffers");
    let gaps: Vec<_> =
        buffers.problem.constraints.gaps.iter().map(|g| (g.lower, g.upper, g.window)).collect();
    assert_eq!(gaps, [(12, 14, None), (3, 5, Some((0, 1))), (5, 6, None)]);
}

#[test]
fn offsets_are_a_plan_until_the_caller_fixes_them() {
    let mut buffers = read(b"id,lower,upper,size,offset\na,0,5,10,30\nb,0,5,10,7\n").expect("buffers");
    assert_eq!(Planner::new().plan(&buffers.problem).expect("a plan").height, 20);
    assert_eq!(buffers.fix_offsets(), Ok(()));
    assert_eq!(Planner::new().plan(&buffers.problem).expect("a plan").offsets, [30, 7]);
    let mut clash = read(b"id,lower,upper,size,offset\na,0,5,10,30\nb,0,5,10,25\n").expect("buffers");
    let before = clash.clone();
    assert!(clash.fix_offsets().is_err());
    assert_eq!(clash, before);
}

#[test]
fn our_columns_name_other_lines_by_id() {
    let text =
        "id,lower,upper,size,inside,in_place,fixed\na@b,0,9,10,,,32\nv,2,5,4,a@b@6,,\nw,3,9,8,, v a@b,\n";
    let buffers = read(text.as_bytes()).expect("buffers");
    let mut expected = inside(1, 0, 6);
    expected.in_place = in_place(&[(2, 1), (2, 0)]).in_place;
    expected.fixed.push(Fixed { block: 0, offset: 32 });
    assert_eq!(buffers.problem.constraints, expected);
    let plan = Planner::new().plan(&buffers.problem).expect("a plan");
    assert_eq!(verify(&buffers.problem, &plan.offsets, plan.height), Ok(()));
    let mut out = Vec::new();
    buffers.write(&mut out, &plan).expect("memory");
    let again = read(&out).expect("what was written");
    assert_eq!((again.problem, again.ids, again.offsets), (buffers.problem, buffers.ids, Some(plan.offsets)));
}

#[test]
fn wrong_constraints_are_refused_with_their_line() {
    let gap = "gaps separated by spaces, each lower-upper or lower-upper@from:to";
    let rows = [
        ("3", format!("3: \"3\" is not a gap; expected {gap}")),
        ("3-x", format!("3: \"3-x\" is not a gap; expected {gap}")),
        ("-3-5", format!("3: \"-3-5\" is not a gap; expected {gap}")),
        ("3-5@", format!("3: \"3-5@\" is not a gap; expected {gap}")),
        ("3-5@1", format!("3: \"3-5@1\" is not a gap; expected {gap}")),
        ("3-5@1:+2", format!("3: \"3-5@1:+2\" is not a gap; expected {gap}")),
        ("3-99999999999999999999", format!("3: \"3-99999999999999999999\" is not a gap; expected {gap}")),
        ("5-3", "3: the gap \"5-3\" is empty or not within the lifetime; expected events of the lifetime".into()),
        ("0-3", "3: the gap \"0-3\" is empty or not within the lifetime; expected events of the lifetime".into()),
        ("7-10", "3: the gap \"7-10\" is empty or not within the lifetime; expected events of the lifetime".into()),
        (
            "3-5@2:11",
            "3: the window of the gap \"3-5@2:11\" is not within the size; expected bytes of the buffer, from and up to".into(),
        ),
        ("6-8 3-7", "3: the gaps that begin at 3 and 6 overlap; expected gaps that lie apart".into()),
    ];
    for (text, message) in rows {
        assert_eq!(error(&format!("id,lower,upper,size,gaps\n0,0,9,5,\n1,1,9,10,{text}\n")), message);
    }
    let rows = [
        ("a,,", "4: inside is \"a\"; expected the id of another line, @ and a distance in bytes"),
        ("a@-1,,", "4: inside is \"a@-1\"; expected the id of another line, @ and a distance in bytes"),
        ("x@1,,", "4: inside names the id \"x\", which no line has; expected the id of a line of this file"),
        (",x,", "4: in_place names the id \"x\", which no line has; expected the id of a line of this file"),
        (",,1e9", "4: the fixed \"1e9\" is not a number; expected a whole number from 0 to 2^64 - 1"),
        (
            "a@1,,",
            "4: block 1: 10 bytes at distance 1 do not lie within the 10 bytes of block 0; correct distance or size (block 1 is \"b\" on line 4, block 0 is \"a\" on line 2)",
        ),
        (
            ",b,",
            "4: block 1: cannot work in place of itself; name two different blocks, or leave it out (block 1 is \"b\" on line 4)",
        ),
    ];
    for (text, message) in rows {
        // A blank line counts as a line.
        let text = format!("id,lower,upper,size,inside,in_place,fixed\na,0,9,10,,,\n\nb,1,9,10,{text}\n");
        assert_eq!(error(&text), message);
    }
}

#[test]
fn numbers_that_are_none_are_refused_in_every_column() {
    for column in ["lower", "upper", "size", "alignment", "offset", "fixed"] {
        for junk in
            ["nan", "inf", "1e9", "-1", "+1", "0x10", "1.0", "1_000", "\u{664}", "18446744073709551616"]
        {
            let names = ["id", "lower", "upper", "size", "alignment", "offset", "fixed"];
            let cell = |name: &str| match name {
                _ if name == column => junk,
                "upper" => "9",
                "alignment" => "1",
                _ => "0",
            };
            let text = format!("{}\n{}\n", names.join(","), names.map(cell).join(","));
            assert!(error(&text).starts_with(&format!("2: the {column} \"")), "{text}: {}", error(&text));
        }
    }
}

#[test]
fn columns_that_contradict_each_other_are_refused() {
    for (header, message) in [
        ("id,buffer,lower,upper,size", "1: the columns id and buffer say the same thing"),
        ("id,lower,upper,end,size", "1: the columns upper and end say the same thing"),
        ("id,lower,upper,size,gaps,Gaps", "1: two columns are named gaps"),
    ] {
        assert_eq!(
            error(&format!("{header}\n")),
            format!("{message}; expected a header like id,lower,upper,size")
        );
    }
}

#[test]
fn inclusive_ends_that_overflow_or_come_too_early_are_refused() {
    let with = |row: &str| error(&format!("id,lower,end,size,gaps\n{row}\n"));
    assert_eq!(
        with("1,0,18446744073709551615,5,"),
        "2: the end 18446744073709551615 is too large; expected a whole number below 2^64 - 1"
    );
    assert_eq!(with("1,5,3,5,"), "2: end 3 is below lower 5 - 1; expected lower <= end + 1");
    assert!(read(b"id,lower,end,size\n1,5,4,5\n").is_ok(), "a buffer that never lives");
}

#[test]
fn ids_that_come_again_are_found_far_apart_numbers_or_not() {
    let mut text = String::from("id,lower,upper,size\n");
    for id in (0..1000).rev() {
        text.push_str(&format!("{id},0,1,5\n"));
    }
    assert!(read(text.as_bytes()).is_ok());
    let expected = |line, id| format!("{line}: the id \"{id}\" was there before; expected every id once");
    assert_eq!(error(&format!("{text}17,0,1,5\n3,0,1,5\n")), expected(1002, "17"));
    assert_eq!(error(&format!("{text}x,0,1,5\n17,0,1,5\nx,0,1,5\n")), expected(1003, "17"));
    assert!(read(format!("{text}017,0,1,5\n").as_bytes()).is_ok(), "another text is another id");
}

/// A million lines, in a process of its own, whose peak is theirs. Ten million, of 300 MB, by hand: `STEPALLOC_LINES=10000000
/// cargo test --release -p stepalloc-planner --test all -- many_lines --nocapture`.
#[test]
fn many_lines_take_memory_in_proportion() {
    const LINES: &str = "STEPALLOC_LINES";
    let Ok(lines) = std::env::var(LINES) else {
        let (_, module) = module_path!().split_once("::").expect("a module of the test");
        let test = format!("{module}::many_lines_take_memory_in_proportion");
        let program = std::env::current_exe().expect("this program");
        let ended =
            std::process::Command::new(program).args(["--exact", &test]).env(LINES, "1000000").output();
        let ended = ended.expect("this program again");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        return;
    };
    let lines: u64 = lines.parse().expect("a number of lines");
    let path = std::env::temp_dir().join(format!("stepalloc-lines-{}", std::process::id()));
    let mut out = std::io::BufWriter::new(fs::File::create(&path).expect("a temporary file"));
    writeln!(out, "id,lower,upper,size").expect("room");
    for id in 0..lines {
        writeln!(out, "{id},{id},{},{}", id + 1 + id % 1000, 64 + id % 4096).expect("room");
    }
    out.flush().expect("room");
    let start = std::time::Instant::now();
    let buffers = csv::read(&path);
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(&path).expect("our own file");
    assert_eq!(buffers.expect("buffers").problem.blocks.len() as u64, lines);
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let bytes = peak.and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024 / lines;
    println!("{lines} lines: {seconds:.2} s, at most {bytes} bytes of memory per line");
    // A block has 40; the vector that holds them grows by doubling, and the index of the ids takes 4.
    assert!(bytes < 100, "{bytes} bytes per line");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_again(
        problem in problems(Extent { blocks: 12, events: 20, size: 4000, align: 30 }),
        named in any::<bool>(),
    ) {
        let (mut problem, mut out) = (problem, Vec::new());
        if named {
            problem.blocks.iter_mut().for_each(|block| block.id += 7_777_777_700);
        }
        csv::write_problem(&mut out, &problem).expect("memory");
        if named {
            // No other number is as large.
            out = String::from_utf8(out).expect("text").replace("777777", "b@").into_bytes();
            problem.blocks.iter_mut().zip(0..).for_each(|(block, index)| block.id = index);
        }
        let buffers = read(&out).expect("what was written");
        problem.constraints = sorted(&problem);
        prop_assert_eq!(&buffers.problem.clone().with_period(problem.period), &problem);
        let mut again = Vec::new();
        buffers.write_problem(&mut again).expect("memory");
        prop_assert_eq!(out, again);
    }

    #[test]
    fn junk_in_constraints_never_panics(
        cut in 0usize..400,
        junk in prop::collection::vec(prop_oneof![any::<u8>(), Just(b','), Just(b'@'), Just(b'-'), b'0'..=b'9'], 0..6),
    ) {
        let text = b"id,lower,upper,size,gaps,inside,in_place,fixed\na,0,9,10,3-5@2:6 7-8,,,32\nv,2,5,4,,a@6,,\nw,3,9,8,,,v a,64\n";
        let mut bytes = text.to_vec();
        let at = cut % bytes.len();
        let end = (at + junk.len()).min(bytes.len());
        bytes.splice(at..end, junk);
        if let Ok(buffers) = read(&bytes) {
            for period in [None, Some(10)] {
                let problem = buffers.problem.clone().with_period(period);
                if let Ok(plan) = Planner::quick().plan(&problem) {
                    prop_assert_eq!(verify(&problem, &plan.offsets, plan.height), Ok(()));
                }
            }
        }
    }
}
