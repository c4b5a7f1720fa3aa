//! The event log and the size log, each as a ring of four entries.

use super::recorder::{Event, Recorder};
use super::size_log::SizeLog;
use crate::lookup::Class;
use crate::models::{ENTRIES, Loom, PAGE_PAIRS, Ptr, U64, Usize, explore, leak};
use core::ptr;
use loom::thread;

fn recorder() -> &'static Recorder<Loom> {
    let recorder =
        leak(Recorder::<Loom>::over(Ptr::new(ptr::null_mut()), Usize::new(0), [0, 0, 0].map(U64::new)));
    assert!(recorder.open());
    recorder
}

/// An event by which its address says everything.
fn event(address: usize) -> Event {
    Event::Free { address, bytes: address + 1000 }
}

#[test]
fn events_are_read_whole_each_by_its_thread() {
    explore(4, || {
        let recorder = recorder();
        let other = thread::spawn(|| recorder.log(event(8), 8));
        recorder.log(event(16), 16);
        let mut seen = Vec::new();
        assert!(recorder.read(recorder.head(), |event, thread| seen.push((event, thread))));
        other.join().expect("no panic");
        assert!(recorder.read(recorder.head(), |event, thread| seen.push((event, thread))));
        seen.sort_unstable_by_key(|&(_, thread)| thread);
        assert_eq!(seen, [(event(8), 8), (event(16), 16)]);
    });
}

#[test]
fn a_move_is_read_whole() {
    explore(4, || {
        let recorder = recorder();
        let class = Class::of(40_000, 1).expect("possible size");
        let moved = Event::Move { address: 24, class, from: 16 };
        let other = thread::spawn(move || recorder.log(moved, 8));
        let mut seen = Vec::new();
        assert!(recorder.read(recorder.head(), |event, _| seen.push(event)));
        other.join().expect("no panic");
        assert!(recorder.read(recorder.head(), |event, _| seen.push(event)));
        assert_eq!(seen, [moved]);
    });
}

/// Of four entries two may be written. A page goes back when it was read, its first entry a second time with the second, and nobody writes
/// into it meanwhile.
#[test]
fn what_was_read_goes_back_before_it_is_written_again() {
    assert_eq!((ENTRIES, PAGE_PAIRS), (4, 2));
    explore(3, || {
        let recorder = recorder();
        let mut seen = Vec::new();
        recorder.log(event(0), 1);
        assert!(recorder.read(1, |event, _| seen.push(event)));
        [1, 2].into_iter().for_each(|address| recorder.log(event(address), 1));
        // The first of these has the last entry, the second one the first entry again.
        let other = thread::spawn(|| [3, 4].into_iter().for_each(|address| recorder.log(event(address), 2)));
        assert!(recorder.read(3, |event, _| seen.push(event)));
        other.join().expect("no panic");
        assert_eq!(seen, [0, 1, 2].map(event));
        // Either came before the ring had room for it, and is lost, or is there.
        let mut rest = Vec::new();
        if recorder.read(recorder.head(), |event, _| rest.push(event)) {
            assert_eq!(rest, [3, 4].map(event));
        }
    });
}

#[test]
fn an_entry_of_the_last_round_is_not_read_for_one_that_is_being_written() {
    explore(None, || {
        let recorder = recorder();
        let ignored = |_, _| ();
        recorder.log(event(0), 1);
        assert!(recorder.read(1, ignored));
        [1, 2].into_iter().for_each(|address| recorder.log(event(address), 1));
        assert!(recorder.read(3, ignored));
        recorder.log(event(3), 1);
        // Where the first one was.
        let other = thread::spawn(|| recorder.log(event(4), 2));
        let mut seen = Vec::new();
        assert!(recorder.read(recorder.head(), |event, _| seen.push(event)));
        other.join().expect("no panic");
        assert!(recorder.read(recorder.head(), |event, _| seen.push(event)));
        assert_eq!(seen, [3, 4].map(event));
    });
}

fn size_log() -> &'static SizeLog<Loom> {
    leak(SizeLog::over(Ptr::new(ptr::null_mut()), [0, 0, u64::MAX, 0].map(U64::new)))
}

/// The first that logs maps the ring, and of two the second gives his own back.
#[test]
fn the_ring_of_sizes_is_mapped_once() {
    explore(4, || {
        let log = size_log();
        let class = |of: u64| Class::from_bits(of * 64).expect("not 0");
        let other = thread::spawn(move || {
            log.log(class(1));
            log.log(class(2));
        });
        // Who only reads may come before both, or between.
        assert!(log.classes(0).into_iter().all(|seen| (1..=2).any(|of| seen == class(of))));
        log.log(class(3));
        log.log(class(4));
        assert!(log.classes(0).into_iter().all(|seen| (1..=4).any(|of| seen == class(of))));
        other.join().expect("no panic");
        // Of each thread's two, one at most was lost to the mapping.
        let classes = log.classes(0);
        assert!((2..=3).contains(&classes.len()) && log.head() == classes.len() as u64);
        assert!(classes.contains(&class(2)) && classes.contains(&class(4)));
    });
}

/// One more than fits: the oldest is gone, and no entry is read that was never written.
#[test]
fn the_newest_sizes_stay() {
    explore(None, || {
        let log = size_log();
        let class = |of: u64| Class::from_bits(of * 64).expect("not 0");
        log.log(class(1));
        (1..=3).for_each(|of| _ = log.log(class(of)));
        let other = thread::spawn(move || log.log(class(4)));
        log.log(class(5));
        let seen = log.classes(0);
        assert!(seen.iter().all(|seen| (1..=5).any(|of| *seen == class(of))) && seen.len() as u64 <= ENTRIES);
        other.join().expect("no panic");
        let mut classes = log.classes(0);
        classes.sort_unstable_by_key(|class| class.to_bits());
        assert_eq!(classes, [2, 3, 4, 5].map(class));
    });
}
