//! What the columns of a file ask for beyond lifetimes and sizes: read, kept, and written back.

use super::{file, plan, text};

/// The content is planned with these options to exactly this solution. Every example has one best plan only.
#[track_caller]
fn solved(content: &str, options: &[&str], solution: &str) {
    let (_directory, input) = file(content);
    let ended = plan(&input, &[&["--output", "-"], options].concat()).with_status(0);
    assert_eq!(ended.out(), solution, "{content}");
}

/// The same content with this column of offsets.
fn with_offsets(content: &str, offsets: &[u64]) -> String {
    let offsets = ["offset".to_owned()].into_iter().chain(offsets.iter().map(u64::to_string));
    content.lines().zip(offsets).map(|(line, offset)| format!("{line},{offset}\n")).collect()
}

/// The content is planned to these offsets, and all its columns are written back as they are.
#[track_caller]
fn placed(content: &str, offsets: &[u64]) {
    solved(content, &[], &with_offsets(content, offsets));
}

#[test]
fn alignments_are_kept() {
    placed("id,lower,upper,size,alignment\na,0,2,3,1\nb,0,2,8,8\n", &[8, 0]);
}

#[test]
fn a_buffer_may_lie_where_another_has_a_gap() {
    placed("id,lower,upper,size,gaps\na,0,9,4,2-6\nb,2,6,4,\n", &[0, 0]);
}

#[test]
fn the_window_of_a_gap_stays_in_use() {
    placed("id,lower,upper,size,gaps\na,0,9,10,2-4@0:3 4-6\nb,2,6,7,\n", &[0, 3]);
}

#[test]
fn gaps_of_files_with_inclusive_ends_are_inclusive() {
    let solution = "id,lower,upper,size,gaps,offset\na,0,9,4,2-6,0\nb,2,6,4,,0\n";
    solved("buffer,start,end,size,gaps\na,0,8,4,2-5\nb,2,5,4,\n", &[], solution);
}

#[test]
fn a_view_lies_at_its_distance_in_its_buffer() {
    placed("id,lower,upper,size,inside\nv,3,9,20,a@30\na,0,5,100,\n", &[30, 0]);
}

#[test]
fn buffers_that_work_in_place_share_their_bytes() {
    placed("id,lower,upper,size,in_place\na,0,5,10,\nb,4,9,10,a c\nc,8,12,10,\n", &[0, 0, 0]);
}

#[test]
fn what_is_fixed_stays_and_the_others_go_round_it() {
    placed("id,lower,upper,size,fixed\na,0,5,10,50\nb,0,5,50,\nc,0,5,30,\n", &[50, 0, 60]);
}

#[test]
fn columns_of_other_names_are_passed_over() {
    let solution = "id,lower,upper,size,offset\na,0,2,10,0\n";
    solved("hint,size,upper,lower,id\nx,10,2,0,a\n", &[], solution);
}

#[test]
fn offsets_of_a_solution_are_passed_over_unless_they_are_fixed() {
    let content = "id,lower,upper,size,offset\na,0,5,10,30\nb,2,6,8,7\n";
    let (_directory, input) = file(content);
    let ended = plan(&input, &[]).with_status(0);
    assert!(ended.out().contains("height       18 bytes"), "{}", ended.out());
    let solution = "id,lower,upper,size,fixed,offset\na,0,5,10,30,30\nb,2,6,8,7,7\n";
    solved(content, &["--fix-offsets"], solution);
    plan(&input, &["--fix-offsets", "--capacity", "40"]).with_status(0);
    plan(&input, &["--fix-offsets", "--capacity", "39"]).with_status(3);
}

#[test]
fn a_solution_with_every_column_is_valid_when_it_is_read_again() {
    let content = "id,lower,upper,size,alignment,gaps,inside,in_place,fixed\na,0,9,64,16,3-5@0:8,,,\nb,2,9,64,16,,,,64\nv,1,4,8,8,,a@16,,\nw,8,12,64,1,,,b,\nx,0,12,100,4,,,,\n";
    let (directory, input) = file(content);
    let (first, second) = (directory.path().join("first.csv"), directory.path().join("second.csv"));
    plan(&input, &["--output", text(&first)]).with_status(0);
    plan(&first, &["--output", text(&second), "--fix-offsets"]).with_status(0);
    let columns = |path| -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(path).expect("a solution");
        let cells = |line: &str| line.split(',').map(str::to_owned).collect();
        text.lines().map(cells).collect()
    };
    let (first, second) = (columns(&first), columns(&second));
    let named =
        |rows: &[Vec<String>], name: &str| rows[0].iter().position(|cell| cell == name).expect("a column");
    let (fixed, offset) = (named(&second, "fixed"), named(&second, "offset"));
    for (asked, (one, two)) in content.lines().zip(first.iter().zip(&second)) {
        assert!(one.join(",").starts_with(asked), "{asked} is not in {one:?}");
        assert_eq!(one[..fixed], two[..fixed]);
        assert_eq!(one[offset], two[offset]);
    }
}

#[test]
fn offsets_that_are_no_plan_are_refused_with_the_lines_that_clash() {
    let clash = "id,lower,upper,size,offset\na,0,5,10,0\n\nb,4,9,10,9\n";
    let turns = "id,lower,upper,size,offset\na,0,5,10,0\nb,6,12,10,9\n";
    let twice = "id,lower,upper,size,fixed,offset\na,0,5,10,3,0\n";
    let misaligned = "id,lower,upper,size,alignment,offset\na,0,5,10,8,4\n";
    let cases: [(&str, &[&str], &str, &str); 4] = [
        (clash, &[], "input.csv:2: ", "(block 0 is \"a\" on line 2, block 1 is \"b\" on line 4)"),
        (turns, &["--period", "10"], "input.csv:2: ", "byte 9 at event 0"),
        (twice, &[], "input.csv:2: ", "fixed at offset 3 and at offset 0"),
        (misaligned, &[], "input.csv:2: ", "4 is not a multiple of its alignment 8"),
    ];
    for (content, options, place, word) in cases {
        let (directory, input) = file(content);
        let output = directory.path().join("solution.csv");
        plan(&input, options).with_status(0);
        let fixed = ["--fix-offsets", "--output", text(&output)];
        let ended = plan(&input, &[&fixed[..], options].concat()).with_status(2);
        let [said] = ended.ours()[..] else { panic!("not one line: {}", ended.err()) };
        assert!(said.contains(place) && said.contains(word), "{place} or {word} is not in: {said}");
        assert!(!output.exists(), "a plan that is none was written");
    }
    let (_directory, input) = file(turns);
    plan(&input, &["--fix-offsets"]).with_status(0);
}
