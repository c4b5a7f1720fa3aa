//! Sums that threads add to while a boundary takes them, and the places of reasons.

use super::counter::{Count, Counter};
use super::misses::Entry;
use crate::models::{Loom, U64, explore, leak};
use loom::thread;

#[test]
fn what_is_added_is_taken_once() {
    explore(3, || {
        let counter = leak(Counter::<Loom>::over(U64::new(0), U64::new(0)));
        let others = [100, 200].map(|bytes| thread::spawn(move || counter.add(bytes)));
        let taken = counter.take();
        others.into_iter().for_each(|other| other.join().expect("no panic"));
        let rest = counter.get();
        let all =
            Count { allocations: taken.allocations + rest.allocations, bytes: taken.bytes + rest.bytes };
        assert_eq!(all, Count { allocations: 2, bytes: 300 });
    });
}

#[test]
fn a_place_counts_one_reason_and_all_who_have_it() {
    explore(3, || {
        let entry = leak(Entry::<Loom>::over([0, 0, 0].map(U64::new)));
        let others = [7, 7].map(|key| thread::spawn(move || entry.is_of(key)));
        let is_other = entry.is_of(9);
        let [one, two] = others.map(|other| other.join().expect("no panic"));
        assert!(one == two && one != is_other, "{one} {two} {is_other}");
    });
}
