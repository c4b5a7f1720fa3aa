//! How many free pages stay resident.
//!
//! *Free pages are kept as long as the heap with them stays within (1 + slack) times the most that was alive at once lately. The slack is half
//! a percent at first, and grows only where giving back proved wrong. What nobody asked for during `STEPALLOC_IDLE` seconds goes back, and so does
//! everything on `release()`.*
//!
//! It is looked at where the heap would grow, as Go's scavenger does (mgcscavenge.go, `scavengeForHeapGrowth`): free pages have just proved
//! to be of no use then. While more is alive than ever before, they cost the process's peak; so they are moved under the new block, or go
//! back. A program whose blocks never lie alike (threads that replace blocks at random) would have pages moved for ever: each time that
//! is done although no more was alive than before is *regretted*, and enough regrets raise the slack, unless they are so rare that they take
//! next to none of the program's time. Programs of which every step has other shapes still move one page in 25 then that a block is given:
//! for them it rises further.
//!
//! What else the process holds (small blocks, what it maps itself) may rise meanwhile, above what the process ever held: free pages raise its
//! peak then, though the heap does not grow. A free looks at that peak now and then, and for each page by which it rose several free
//! ones go back. So it rises by a small part of what it would, and the page faults that this costs are bounded by the rise.
//!
//! Plain numbers only, in pages.

use core::mem;

/// The slack's unit is one part in this many of the peak. It grows by one, and a quarter of what it was: as many pages
/// fault when it does.
const SLACK_STEP: u64 = 800;
/// From here on it doubles instead: a program that has regretted so often never comes to an end with little.
const SLACK_DOUBLES: u64 = 14;
/// Upper bound of the slack in such parts, 14.5 %: with it threads that replace blocks at random move next to nothing. With 13 % they moved
/// two fifths more often.
const SLACK_MOST: u64 = 116;
/// The slack is also bounded by 18 % of the peak, less the four MiB that a process has besides (code, tables, small blocks), so that VmHWM
/// stays within a fifth of what is alive. In small programs the bound is a twentieth of the peak.
const PROCESS_PERCENT: u64 = 18;
const BESIDES: u64 = 1024;
const SMALL_SHARE: u64 = 20;
/// Beyond that it grows by a quarter at a time, up to 30 %, where of all pages that blocks are given more than one in so many is moved there, or
/// goes back for it. Threads that replace blocks at random move one in a hundred, programs whose every step has other shapes one in 25.
const MOVED_SHARE: u64 = 33;
const SLACK_LAST: u64 = 240;
/// That is judged once blocks were given so many times the peak, and has to be so twice in a row: a program that starts moves more.
const PEAKS_JUDGED: u64 = 16;
/// The slack at first, half a percent: nearly all programs come to that, and do so before they repeat themselves.
const SLACK_FIRST: u64 = 4;
/// Regrets are enough where they would have faulted one part in this many of the peak.
const PATIENCE: u64 = 200;
/// Time of a page fault, roughly. Moving pages takes seven microseconds in a program of one thread, and up to two hundred where others run,
/// whose processors must be interrupted: so it is measured.
const FAULT_NANOSECONDS: u64 = 500;
/// Upper bound of one regret's time, in faults: the thread may have waited for a processor meanwhile.
const REGRET_MOST: u64 = 512;
/// One part in this many of the time may go into what is regretted, and what it did not take of the newest second, a millisecond: trainings,
/// whose steps take a tenth of a second, need little more, and are spared the slack's pages.
const TIME_SHARE: u64 = 1024;
const TIME_SAVED: u64 = 1_000_000_000;
/// What may always be kept: half a MiB of small pages, which no process's peak shows.
const LEAST: u64 = 128;

/// Free pages that go back for each page by which the process rose without the heap.
const RISE_COUNTS: u64 = 8;
/// What was handed out and is not there may be touched later; at each look one part in this many of it is thought to stay so. With a part in
/// eight, large blocks that are filled over many looks were taken for other memory.
const UNTOUCHED_FORGOTTEN: u64 = 64;

/// The arena's free pages press where they would raise the process's peak by more than one part in this many, and [`LEAST`].
const PRESSES: u64 = 32;

/// The account of the heap's pages.
pub(super) struct Retention {
    /// Pages of live blocks.
    pub(super) alive: u64,
    /// Those of them that are lent to the allocator's own work: they take free pages, and no more are kept because of them.
    lent: u64,
    /// Pages outside the heap that learning takes meanwhile: so many fewer are kept free.
    learning: u64,
    /// Pages that may be resident: those of live blocks, and free ones that were not given back.
    pub(super) resident: u64,
    /// The most that were alive at once lately.
    peak: u64,
    /// The most that were alive since [`Retention::second`] was last called.
    newest: u64,
    /// The same of the seconds before.
    seconds: [u64; SECONDS],
    slack: u64,
    /// In faults; less than nothing where time is left for them.
    regrets: i64,
    /// The time of the last one.
    regretted: u64,
    /// Pages that blocks were given, and of them those that were regretted, since that was last judged.
    given: u64,
    moved: u64,
    /// It was too many the last time.
    moved_much: bool,
    /// The program's period is known, and a plan about to come, with which nothing is moved any more: nothing is regretted.
    pub(super) awaits_plan: bool,
    /// Pages that the arena holds, those of free slots included.
    pub(super) arena: u64,
    /// The most that was alive here and held there at once, ever: below it, nothing shows in the process's peak.
    total: u64,
    /// The most that was resident here and held there at once, ever.
    held: u64,
    process: Process,
}

/// The process when it was last looked at, in pages.
struct Process {
    /// Its peak.
    peak: u64,
    /// [`Retention::held`].
    held: u64,
    /// What of that the program may not have touched yet.
    untouched: u64,
}

/// "Lately" is so many seconds.
const SECONDS: usize = 10;

impl Retention {
    pub(super) const fn new() -> Self {
        Self {
            alive: 0,
            lent: 0,
            learning: 0,
            resident: 0,
            peak: 0,
            newest: 0,
            seconds: [0; SECONDS],
            slack: SLACK_FIRST,
            regrets: 0,
            regretted: 0,
            given: 0,
            moved: 0,
            moved_much: false,
            awaits_plan: false,
            arena: 0,
            total: 0,
            held: 0,
            process: Process { peak: 0, held: 0, untouched: 0 },
        }
    }

    /// Pages of the program's live blocks; fewer for the moment in which a lent one is freed, but not yet taken back.
    fn asked(&self) -> u64 {
        self.alive.saturating_sub(self.lent)
    }

    /// Pages that may be resident.
    fn allowed(&self) -> u64 {
        if self.learning > 0 {
            // Nothing beyond what was alive at once, so that learning makes no peak.
            return (self.peak + self.slack_of(self.peak)).saturating_sub(self.learning).max(self.alive);
        }
        if self.arena == 0 {
            return self.peak + self.slack_of(self.peak).max(LEAST);
        }
        // Beside an arena, what that leaves of the process's peak.
        let total = self.total + self.slack_of(self.total).max(self.total / PRESSES);
        let beside = total.saturating_sub(self.arena).max(self.alive) + LEAST;
        beside.min(self.peak + self.slack_of(self.peak).max(LEAST))
    }

    /// Free pages that may be kept beyond a peak of `pages`.
    fn slack_of(&self, pages: u64) -> u64 {
        let bounded = (pages * PROCESS_PERCENT / 100).saturating_sub(BESIDES).max(pages / SMALL_SHARE);
        let most = if self.slack > SLACK_MOST { pages } else { bounded };
        (pages * self.slack / SLACK_STEP).min(most)
    }

    /// Whether pages must cease to be resident for a block of `pages` of which `fresh` are not.
    #[inline]
    pub(super) fn exceeds(&self, pages: u64, fresh: u64) -> bool {
        fresh > 0 && self.resident + fresh > self.allowed().max(self.asked() + pages)
    }

    /// Counts a block of `pages`, of which `fresh` were not resident, and returns the pages that must cease to be.
    #[inline]
    pub(super) fn allocate(&mut self, pages: u64, fresh: u64) -> u64 {
        self.alive += pages;
        self.given += pages;
        self.resident += fresh;
        let asked = self.asked();
        self.newest = self.newest.max(asked);
        self.peak = self.peak.max(asked);
        if fresh == 0 {
            return 0;
        }
        let excess = self.resident.saturating_sub(self.allowed());
        self.held = self.held.max(self.resident - excess + self.arena);
        excess
    }

    /// The block of `pages` that is allocated next is lent.
    pub(super) fn lend(&mut self, pages: u64) {
        self.lent += pages;
    }

    /// A lent block of `pages` was freed.
    pub(super) fn take_back(&mut self, pages: u64) {
        self.lent -= pages;
    }

    /// Says how many pages learning takes outside the heap from now on; 0 where it has ended. Returns the pages that are to go back for them.
    pub(super) fn learns_with(&mut self, pages: u64) -> u64 {
        self.learning = pages;
        if pages > 0 { self.resident.saturating_sub(self.allowed()) } else { 0 }
    }

    /// The arena's pages that would raise the process's peak now, and are to go: 0, or many.
    #[inline]
    pub(super) fn presses(&mut self) -> u64 {
        let total = self.asked() + self.arena;
        if self.arena == 0 {
            self.total = self.total.max(total);
        }
        // Beside an arena a little more does not count.
        let presses = total > self.total + self.total / PRESSES + LEAST;
        if presses { total - self.total } else { 0 }
    }

    /// Says what the arena holds from now on. Returns the heap's pages that are to go back for it, and whether these are so many that the
    /// arena presses.
    pub(super) fn arena_holds(&mut self, pages: u64) -> (u64, bool) {
        self.arena = pages;
        let excess = self.resident.saturating_sub(self.allowed());
        (excess, excess > self.total / PRESSES + LEAST)
    }

    /// The arena serves no longer, and what it has given is the heap's: as if that had been alive here, as far as it is there. Says what the
    /// arena still holds, and returns the pages that are to go back.
    pub(super) fn arena_retires(&mut self, pages: u64) -> u64 {
        self.arena = pages;
        let held = self.total.min(self.resident + pages);
        self.newest = self.newest.max(held);
        self.peak = self.peak.max(held);
        self.resident.saturating_sub(self.allowed())
    }

    /// A plan is about to hold `arena` pages beside what is alive here, and is worth it.
    pub(super) fn expect(&mut self, arena: u64) {
        self.total = self.total.max(self.asked() + arena);
    }

    /// The arena has given what it can: all of the rest is needed.
    pub(super) fn relieved(&mut self) {
        self.total = self.total.max(self.asked() + self.arena);
    }

    /// Says what it took to do what [`Retention::allocate`] said: pages that were moved, those that went back, and may fault again, and
    /// nanoseconds, up to `now`.
    pub(super) fn regret(&mut self, moved: u64, returned: u64, nanoseconds: u64, now: u64) {
        if self.alive < self.peak && !self.awaits_plan {
            self.moved += moved + returned;
            if self.slack >= SLACK_MOST && self.given > PEAKS_JUDGED * self.peak {
                let much = self.moved * MOVED_SHARE > self.given;
                if much && self.moved_much {
                    self.slack = (self.slack + self.slack / 4).min(SLACK_LAST);
                }
                self.moved_much = much;
                (self.given, self.moved) = (0, 0);
            }
            let since = now.saturating_sub(mem::replace(&mut self.regretted, now)).min(TIME_SAVED);
            let spared = |nanoseconds: u64| (nanoseconds / FAULT_NANOSECONDS / TIME_SHARE) as i64;
            self.regrets = (self.regrets - spared(since)).max(-spared(TIME_SAVED));
            self.regrets += (returned + (nanoseconds / FAULT_NANOSECONDS).min(REGRET_MOST)) as i64;
            if self.regrets > (self.peak / PATIENCE) as i64 {
                self.regrets = 0;
                let more = if self.slack < SLACK_DOUBLES { 1 + self.slack / 4 } else { self.slack };
                if self.slack < SLACK_MOST {
                    self.slack = (self.slack + more).min(SLACK_MOST);
                    (self.given, self.moved) = (0, 0);
                }
            }
        }
    }

    /// Free pages that may be resident.
    pub(super) fn free(&self) -> u64 {
        self.resident - self.alive
    }

    /// The plan has filled the arena, which holds `pages`: forgets the peak, unless most of that is the heap's still, as beside the plan of a
    /// loop within the step. Returns the pages that are to go back for it.
    pub(super) fn plan_has_filled(&mut self, pages: u64) -> u64 {
        self.arena = pages;
        if 2 * pages >= self.peak {
            self.forget();
        }
        self.resident.saturating_sub(self.allowed())
    }

    /// Forgets the peak.
    fn forget(&mut self) {
        self.seconds = [0; SECONDS];
        (self.peak, self.newest) = (self.asked(), self.asked());
    }

    /// Says the process's peak of resident pages. Returns the free pages that are to go back because it has risen otherwise than by the heap.
    pub(super) fn process_has(&mut self, peak: u64) -> u64 {
        self.held = self.held.max(self.resident + self.arena);
        let Process { peak: before, held, untouched } = self.process;
        // What the heap has handed out shows once the program touches it.
        let untouched = untouched + (self.held - held);
        let rise = if before == 0 { 0 } else { peak.saturating_sub(before) };
        let left = untouched.saturating_sub(rise);
        self.process = Process { peak, held: self.held, untouched: left - left / UNTOUCHED_FORGOTTEN };
        // A plan that is about to come needs them.
        let counts = if self.awaits_plan || self.learning > 0 { 0 } else { RISE_COUNTS };
        (rise.saturating_sub(untouched) * counts).min(self.free().saturating_sub(LEAST))
    }

    /// Called about once a second, where anybody can: forgets what was alive longer ago. Returns the pages that are to go back for it.
    pub(super) fn second(&mut self) -> u64 {
        self.seconds.rotate_right(1);
        let asked = self.asked();
        self.seconds[0] = mem::replace(&mut self.newest, asked);
        self.peak = self.seconds.iter().fold(asked, |most, &alive| most.max(alive));
        self.resident.saturating_sub(self.allowed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freed(retention: &mut Retention, pages: u64) {
        retention.alive -= pages;
    }

    #[test]
    fn free_pages_are_kept_until_the_heap_would_grow_beyond_its_peak() {
        let mut retention = Retention::new();
        assert_eq!(retention.allocate(10_000, 10_000), 0);
        freed(&mut retention, 9_000);
        assert_eq!((retention.free(), retention.allocate(9_000, 0)), (9_000, 0));
        freed(&mut retention, 5_000);
        // No free run serves it: as many go back as are new, but for what may always be kept.
        assert_eq!(retention.allocate(3_000, 3_000), 3_000 - LEAST);
    }

    #[test]
    fn regrets_raise_the_slack_up_to_its_bound() {
        let mut retention = Retention::new();
        retention.allocate(100_000, 100_000);
        let turns = |retention: &mut Retention, pause: u64| {
            for turn in 1..1000 {
                freed(retention, 50_000);
                retention.resident -= retention.allocate(40_000, 20_000);
                retention.regret(0, 0, 100_000, turn * pause);
                freed(retention, 40_000);
                retention.allocate(50_000, 0);
            }
        };
        turns(&mut retention, 100_000 * TIME_SHARE);
        assert_eq!(retention.slack, SLACK_FIRST, "rare ones are none");
        retention.regretted = 0;
        turns(&mut retention, 1_000_000);
        assert_eq!(retention.slack, SLACK_MOST);
        assert_eq!(retention.allowed(), 114_500);
        // What is needed anyway is no regret.
        let mut growing = Retention::new();
        for _ in 0..100 {
            growing.allocate(1_000, 1_000);
            growing.regret(0, 0, 100_000, 0);
        }
        assert_eq!(growing.slack, SLACK_FIRST);
    }

    #[test]
    fn programs_that_move_much_even_then_are_given_more() {
        let grown = |moved: u64| {
            let mut retention = Retention::new();
            retention.slack = SLACK_MOST;
            retention.allocate(100_000, 100_000);
            let mut slacks = [0; 4];
            for slack in &mut slacks {
                // A little more than is judged at once: 33 times half the peak, of which the last makes the step judged.
                for _ in 0..2 * PEAKS_JUDGED + 1 {
                    freed(&mut retention, 50_000);
                    retention.regret(moved, 0, 0, 0);
                    retention.allocate(50_000, 0);
                }
                *slack = retention.slack;
            }
            slacks
        };
        assert_eq!(grown(50_000 / MOVED_SHARE - 100), [SLACK_MOST; 4], "one in a hundred, say");
        assert_eq!(grown(50_000 / MOVED_SHARE + 100), [SLACK_MOST, 145, 181, 226], "from the second time on");
    }

    #[test]
    fn what_is_lent_takes_free_pages_and_leaves_none() {
        let mut retention = Retention::new();
        retention.allocate(10_000, 10_000);
        freed(&mut retention, 9_000);
        retention.lend(2_000);
        // As many free pages give way as it does not find where it lies.
        let excess = retention.allocate(2_000, 1_500);
        assert_eq!(excess, 1_500 - LEAST);
        retention.resident -= excess;
        // The program is at its peak meanwhile.
        retention.lend(100);
        retention.allocate(100, 0);
        let beyond = retention.alive + 9_000 - retention.resident;
        retention.allocate(9_000, beyond);
        assert_eq!(retention.peak, 10_000);
        freed(&mut retention, 9_000);
        freed(&mut retention, 2_000);
        retention.take_back(2_000);
        assert_eq!((retention.asked(), retention.alive), (1_000, 1_100));
        // It goes back where the heap would grow.
        let beyond = retention.resident - 10_000 - LEAST;
        assert_eq!(retention.allocate(3_000, 1_000), beyond + 1_000);
    }

    #[test]
    fn what_learning_takes_elsewhere_is_taken_from_free_pages() {
        let mut retention = Retention::new();
        retention.allocate(10_000, 10_000);
        freed(&mut retention, 9_900);
        let slack = retention.slack_of(10_000);
        assert_eq!(retention.learns_with(1_000), 1_000 - slack);
        retention.resident -= 1_000 - slack;
        // The program is at its peak meanwhile: all that is alive is kept.
        assert_eq!(retention.allocate(9_000, 100), 50);
        retention.resident -= 50;
        assert_eq!(retention.allocate(900, 900), 0);
        assert_eq!(retention.learns_with(0), 0);
    }

    #[test]
    fn the_arena_gives_way_before_the_process_rises_above_its_peak() {
        let mut retention = Retention::new();
        retention.allocate(10_000, 10_000);
        assert!(retention.presses() == 0);
        freed(&mut retention, 9_000);
        for _ in 0..3 {
            // Of 10,000 pages 9,000 are the arena's; the heap keeps a little beside them.
            assert_eq!(retention.arena_holds(9_000).0, retention.resident - (10_000 + 312 - 9_000) - LEAST);
            retention.resident -= retention.arena_holds(9_000).0;
            assert!(retention.presses() == 0);
            retention.allocate(400, 0);
            assert!(retention.presses() == 0, "a little more is no peak");
            retention.allocate(4_600, 0);
            assert!(retention.presses() > 0);
            retention.arena_holds(1_000);
            assert!(retention.presses() == 0);
            freed(&mut retention, 5_000);
        }
    }

    #[test]
    fn what_a_retired_arena_held_is_kept_as_the_heaps() {
        let mut retention = Retention::new();
        retention.allocate(10_000, 10_000);
        assert_eq!(retention.presses(), 0);
        freed(&mut retention, 9_900);
        let (excess, presses) = retention.arena_holds(9_000);
        assert!(presses);
        retention.resident -= excess;
        assert!(retention.resident < 2_000);
        retention.forget();
        // Its free pages are adopted.
        retention.resident += 8_000;
        assert_eq!(retention.arena_retires(500), 0);
        assert_eq!(retention.allocate(9_000, 300), 0);
    }

    #[test]
    fn a_small_plan_leaves_the_heap_its_peak_and_its_slack() {
        let mut retention = Retention::new();
        retention.allocate(10_000, 10_000);
        assert_eq!(retention.presses(), 0);
        retention.slack = SLACK_MOST;
        let most = retention.allowed();
        freed(&mut retention, 9_000);
        assert_eq!(retention.plan_has_filled(100), 0);
        // Up to what 18 % of the peak leave.
        assert_eq!(retention.allocate(9_300, most - 10_000 - 100), 0);
        freed(&mut retention, 9_300);
        for _ in 0..3 {
            assert_eq!(retention.arena_holds(100), (0, false));
        }
        // One that holds most of it takes the peak's place.
        assert!(retention.plan_has_filled(9_000) > 8_000);
    }

    #[test]
    fn a_program_that_needs_more_than_before_presses_once() {
        let mut retention = Retention::new();
        retention.allocate(1_000, 1_000);
        retention.arena_holds(9_000);
        retention.allocate(9_000, 9_000);
        assert!(retention.presses() > 0);
        retention.relieved();
        for _ in 0..3 {
            retention.arena_holds(8_000);
            assert!(retention.presses() == 0);
        }
    }

    #[test]
    fn free_pages_go_back_where_the_process_rises_without_the_heap() {
        let mut retention = Retention::new();
        assert_eq!(retention.process_has(5_000), 0, "the first look tells nothing");
        retention.allocate(10_000, 10_000);
        freed(&mut retention, 9_000);
        assert_eq!(retention.process_has(12_000), 0, "the heap rose");
        assert_eq!(retention.process_has(14_000), 0, "what it has handed out was touched later");
        let untouched = retention.process.untouched;
        assert!((900..1_000).contains(&untouched), "{untouched}: of 1,000 some are forgotten");
        let peak = 14_000 + untouched + 100;
        assert_eq!(retention.process_has(peak), 100 * RISE_COUNTS);
        retention.resident -= 100 * RISE_COUNTS;
        assert_eq!(retention.process_has(peak), 0);
        // What went back may come again: below what the heap ever held, the process rises for others.
        retention.allocate(8_900, 300);
        freed(&mut retention, 8_900);
        assert_eq!(retention.process_has(peak + 50), 50 * RISE_COUNTS);
        retention.awaits_plan = true;
        assert_eq!(retention.process_has(peak + 100), 0, "a plan that comes will need them");
        retention.awaits_plan = false;
        assert_eq!(retention.process_has(100_000), retention.free() - LEAST, "all that can");
    }

    #[test]
    fn a_peak_is_forgotten_after_seconds_without_it() {
        let mut retention = Retention::new();
        retention.allocate(10_000, 10_000);
        freed(&mut retention, 9_900);
        for _ in 0..SECONDS {
            assert_eq!(retention.second(), 0);
        }
        assert_eq!(retention.second(), 10_000 - 100 - LEAST);
    }
}
