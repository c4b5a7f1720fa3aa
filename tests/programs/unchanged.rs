//! Everyday programs with the library in front: the same output and the same exit status as without, over each backend.
//! They have no period, and no arena is made for them.

use crate::process::{self, Ended};
use crate::{BACKENDS, compiled};
use std::path::Path;
use std::process::Command;

/// Debian's, which has no wrapper around it.
const PYTHON: &str = "/usr/bin/python3";
/// Lines of the text that the programs work on.
const LINES: u32 = 200_000;

/// A directory with `numbers.txt`, a text of a few MiB in no order.
fn workplace() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let mut random = 1u32;
    let line = |_| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        format!("{} {}\n", random >> 8, random % 1000)
    };
    let text: String = (0..LINES).map(line).collect();
    std::fs::write(directory.path().join("numbers.txt"), text).expect("written");
    directory
}

/// Runs a shell script without the library and with it over each backend; the files named must come out alike, too.
#[track_caller]
fn unchanged(needed: &[&str], script: &str, files: &[&str]) {
    for told in alike(needed, script, files) {
        assert!(
            told.lines().all(|process| process.contains("\"arena_bytes\": 0,")),
            "a plan was made: {told}"
        );
    }
}

/// The same, whether there is a period or not; returns what the processes over each backend told of
/// themselves.
#[track_caller]
fn alike(needed: &[&str], script: &str, files: &[&str]) -> Vec<String> {
    if !needed.iter().all(|program| process::installed(program)) {
        return Vec::new();
    }
    let directory = workplace();
    let run = |command: &mut Command| -> (Ended, Vec<Option<Vec<u8>>>) {
        for file in files {
            let _ = std::fs::remove_file(directory.path().join(file));
        }
        // The locale decides how text is sorted, the home what is configured.
        command
            .args(["-ec", script])
            .current_dir(&directory)
            .env("LC_ALL", "C")
            .env("HOME", directory.path());
        let ended = process::finish(command);
        (ended, files.iter().map(|file| std::fs::read(directory.path().join(file)).ok()).collect())
    };
    let (plain, plain_files) = run(&mut process::command("sh"));
    assert_eq!(plain.status, 0, "without the library: {}", String::from_utf8_lossy(&plain.err));
    assert!(plain_files.iter().all(Option::is_some), "a file was not written without the library");
    let figures = directory.path().join("figures of stepalloc");
    let mut told = Vec::new();
    for backend in BACKENDS {
        let (ended, written) = run(process::preloaded("sh", backend).env("STEPALLOC_JSON", &figures));
        assert_eq!(ended.status, 0, "over {backend}: {}", String::from_utf8_lossy(&ended.err));
        assert!(ended == plain, "other output over {backend}: {}", String::from_utf8_lossy(&ended.err));
        assert!(written == plain_files, "other files over {backend}");
        told.push(std::fs::read_to_string(&figures).unwrap_or_default());
        let _ = std::fs::remove_file(&figures);
    }
    told
}

#[test]
fn sort() {
    unchanged(&["sort"], "sort -n numbers.txt; sort -rk2 -S 1M numbers.txt", &[]);
}

#[test]
fn gzip_and_xz() {
    unchanged(&["gzip"], "gzip -c numbers.txt | gzip -dc | cmp - numbers.txt; gzip -nc numbers.txt", &[]);
    unchanged(&["xz"], "head -c 500000 numbers.txt | xz -2 -T2 -c | xz -dc", &[]);
}

#[test]
fn tar() {
    unchanged(&["tar", "gzip"], "tar czf - numbers.txt | tar tzvf -; tar cf - numbers.txt | tar xOf -", &[]);
}

#[test]
fn awk() {
    let script = "awk '{ sum[$2] += $1; if (NR < 5000) text = text $2 } END { for (i = 0; i < 1000; i++) print i, sum[i]; print length(text) }' numbers.txt";
    unchanged(&["awk"], script, &[]);
}

#[test]
fn sed_and_grep() {
    unchanged(&["sed", "grep"], "sed 's/1\\(.\\)/<\\1>/g' numbers.txt | grep -E '<([0-9])>.*<\\1>'", &[]);
}

#[test]
fn python_with_json_and_threads() {
    let program = "
import json, threading, hashlib
rows = [[int(word) for word in line.split()] for line in open('numbers.txt')]
assert json.loads(json.dumps(rows)) == rows
blocks = []
def work(seed):
    blocks.append((seed, hashlib.sha256(b''.join(bytes([seed]) * size for size in range(0, 300000, 10000))).hexdigest()))
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(blocks), sum(row[0] for row in rows))
";
    // Its threads ask for the same sizes one after the other, which may be a period.
    alike(&[PYTHON], &format!("{PYTHON} -c \"{program}\""), &[]);
}

#[test]
fn python_with_processes() {
    let program = "
import multiprocessing
def square(block): return sum(block) ** 2
if __name__ == '__main__':
    with multiprocessing.get_context('fork').Pool(4) as pool:
        print(pool.map(square, [bytes([i]) * 100000 for i in range(50)]))
";
    unchanged(&[PYTHON], &format!("{PYTHON} -c \"{program}\""), &[]);
}

#[test]
fn perl() {
    let program = "my %h; while (<>) { my @w = split; push @{$h{$w[1]}}, $w[0] } \
                   print join(\",\", $_, sort @{$h{$_}}), \"\\n\" for sort keys %h";
    unchanged(&["perl"], &format!("perl -e '{}' numbers.txt", program.replace("  ", " ")), &[]);
}

#[test]
fn git() {
    let script = "
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.org
        export GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@example.org
        export GIT_AUTHOR_DATE='2000-01-01T00:00:00Z' GIT_COMMITTER_DATE='2000-01-01T00:00:00Z'
        rm -rf repository; git init -q -b main repository; cd repository
        for i in 1 2 3; do
            head -n $((i * 10000)) ../numbers.txt > file; git add file; git commit -qm \"commit $i\"
        done
        git repack -adq; git log --stat -p | tail -n 1000; git fsck --strict --no-progress 2>&1";
    unchanged(&["git"], script, &[]);
}

#[test]
fn sqlite() {
    let script = "rm -f base; sqlite3 base \"
        create table t (a integer, b integer);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000)
            insert into t select i * 7919 % 50021, i % 100 from n;
        create index i on t (b, a);
        select b, count(*), sum(a), max(a) from t group by b order by 3 desc;\"";
    unchanged(&["sqlite3"], script, &[]);
}

#[test]
fn the_c_compiler() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/contract.c");
    unchanged(&["cc"], &format!("cc -O1 -w -c '{}' -o out.o", source.display()), &["out.o"]);
}

#[test]
fn a_program_that_fails() {
    let script =
        format!("set +e; '{}' 3 exit 7; echo $?; ls no-such-file 2>&1; echo $?", compiled::steps().display());
    unchanged(&[], &script, &[]);
}
