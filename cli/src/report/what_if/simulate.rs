//! Allocators that know nothing of the future, boiled down to where they put blocks.
//!
//! Each takes a stream and says how many bytes of addresses it needs at most: the extent of its arena, or the sum of its
//! pools. Threads' own caches and arenas, and memory that goes back to the system, are left out. A reallocation is an
//! allocation, a copy and a free.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::gaps::Gaps;
use super::stream::{Action, Request, Stream};

/// Where first fit's blocks begin and how their sizes are rounded: a cache line, PyTorch's and TensorFlow's alignment.
pub const LINE: u64 = 64;

/// An arena served in the program's own order: each block goes to the lowest address where it fits.
pub fn first_fit(stream: &Stream) -> u64 {
    let mut gaps = Gaps::new();
    let mut places = vec![(0, 0); stream.blocks.len()];
    // Behind the last block, and the furthest that was.
    let (mut top, mut extent) = (0u64, 0);
    for action in &stream.actions {
        match *action {
            Action::Allocate(block) => {
                let Request { size, align } = stream.blocks[block];
                let (size, align) = (size.max(1).next_multiple_of(LINE), align.max(LINE));
                let (at, room) = match gaps.lowest(size, align) {
                    Some((at, room)) => {
                        gaps.remove(at);
                        (at, room)
                    }
                    None => {
                        let room = top.next_multiple_of(align) + size - top;
                        top += room;
                        (top - room, room)
                    }
                };
                let place = at.next_multiple_of(align);
                gaps.insert(at, place - at);
                gaps.insert(place + size, at + room - place - size);
                places[block] = (place, size);
                extent = extent.max(top);
            }
            Action::Free(block) => {
                let (place, size) = places[block];
                let end = place + size + gaps.remove(place + size).unwrap_or(0);
                let at = gaps.remove_before(place).unwrap_or(place);
                if end == top {
                    top = at;
                } else {
                    gaps.insert(at, end - at);
                }
            }
        }
    }
    extent
}

/// glibc's header of a chunk in use: its size field; the field before it is the neighbour's last bytes.
const OVERHEAD: u64 = 8;
/// Chunks are multiples of it, and blocks begin at such (MALLOC_ALIGNMENT).
const CHUNK_ALIGN: u64 = 16;
/// From a chunk's beginning to its block's.
const TO_BLOCK: u64 = 16;
/// The least chunk (MINSIZE).
const LEAST: u64 = 32;

/// Best fit among chunks with headers, as glibc's malloc does it in one arena: malloc/malloc.c of glibc 2.36, `_int_malloc`,
/// `_int_free`, `_int_memalign`. Of equal chunks the lowest is taken. The order of the unsorted bin, tcache, fast bins, and
/// the threshold above which blocks are mapped one by one are left out.
pub fn best_fit(stream: &Stream) -> u64 {
    let mut heap = Heap::default();
    let mut places = vec![(0, 0); stream.blocks.len()];
    for action in &stream.actions {
        match *action {
            Action::Allocate(block) => places[block] = heap.allocate(stream.blocks[block]),
            Action::Free(block) => heap.release(places[block]),
        }
    }
    heap.extent
}

/// A chunk: address and bytes.
type Chunk = (u64, u64);

/// One of glibc's arenas.
#[derive(Debug, Default)]
struct Heap {
    /// Free chunks by size.
    by_size: BTreeSet<(u64, u64)>,
    /// And by address; none borders on another or on the top.
    by_address: BTreeMap<u64, u64>,
    /// Behind the last chunk.
    top: u64,
    /// The furthest the top was.
    extent: u64,
}

impl Heap {
    /// A chunk for so many bytes of a block.
    fn chunk_bytes(bytes: u64) -> u64 {
        (bytes + OVERHEAD).next_multiple_of(CHUNK_ALIGN).max(LEAST)
    }

    fn allocate(&mut self, Request { size, align }: Request) -> Chunk {
        let bytes = Heap::chunk_bytes(size);
        if align <= CHUNK_ALIGN {
            return self.take(bytes);
        }
        // Room to begin anywhere; what is too much goes back at once.
        let align = align.max(LEAST);
        let (mut at, mut room) = self.take(Heap::chunk_bytes(bytes + align + LEAST));
        let mut place = (at + TO_BLOCK).next_multiple_of(align) - TO_BLOCK;
        if place != at {
            if place - at < LEAST {
                place += align;
            }
            self.release((at, place - at));
            (at, room) = (place, room - (place - at));
        }
        if room > bytes + LEAST {
            self.release((at + bytes, room - bytes));
            room = bytes;
        }
        (at, room)
    }

    /// The best chunk of at least so many bytes, split where the rest is worth it.
    fn take(&mut self, bytes: u64) -> Chunk {
        let Some(&(room, at)) = self.by_size.range((bytes, 0)..).next() else {
            self.top += bytes;
            self.extent = self.extent.max(self.top);
            return (self.top - bytes, bytes);
        };
        self.remove(at, room);
        if room - bytes < LEAST {
            return (at, room);
        }
        self.insert(at + bytes, room - bytes);
        (at, bytes)
    }

    /// Frees a chunk, as one with what is free beside it.
    fn release(&mut self, (mut at, mut bytes): Chunk) {
        if let Some((&below, &room)) = self.by_address.range(..at).next_back()
            && below + room == at
        {
            self.remove(below, room);
            (at, bytes) = (below, bytes + room);
        }
        if let Some(&room) = self.by_address.get(&(at + bytes)) {
            self.remove(at + bytes, room);
            bytes += room;
        }
        if at + bytes == self.top {
            self.top = at;
        } else {
            self.insert(at, bytes);
        }
    }

    fn insert(&mut self, at: u64, bytes: u64) {
        self.by_size.insert((bytes, at));
        self.by_address.insert(at, bytes);
    }

    fn remove(&mut self, at: u64, bytes: u64) {
        self.by_size.remove(&(bytes, at));
        self.by_address.remove(&at);
    }
}

/// A pool of size classes: a freed block serves its own class only, and nothing is given back. It needs, of each class, as
/// many blocks as were alive at once.
pub fn pool(stream: &Stream, class: impl Fn(&Request) -> u64) -> u64 {
    let classes: Vec<u64> = stream.blocks.iter().map(class).collect();
    let mut counts: HashMap<u64, (u64, u64)> = HashMap::new();
    for action in &stream.actions {
        match *action {
            Action::Allocate(block) => {
                let (live, most) = counts.entry(classes[block]).or_default();
                *live += 1;
                *most = (*most).max(*live);
            }
            Action::Free(block) => counts.entry(classes[block]).or_default().0 -= 1,
        }
    }
    counts.iter().map(|(class, (_, most))| class * most).sum()
}

/// The power of two that holds a block.
pub fn power_of_two(request: &Request) -> u64 {
    request.size.max(request.align).next_power_of_two()
}

/// The class of jemalloc that holds a block: four to each doubling, and multiples of 16 up to 128 (jemalloc 5,
/// include/jemalloc/internal/sz.h). An alignment asks for the class of the size rounded up to it.
pub fn four_to_a_doubling(request: &Request) -> u64 {
    let size = request.size.max(1).next_multiple_of(request.align);
    let doubling = size.next_power_of_two() / 2;
    size.next_multiple_of((doubling / 4).max(16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::what_if::stream::tests::stream;

    #[test]
    fn first_fit_takes_the_lowest_gap_and_cannot_move_blocks() {
        // 64, 128, 64 side by side; the middle goes; 64 takes its beginning, 128 goes behind.
        assert_eq!(first_fit(&stream(&[64, 128, 64, -2, 64, 128])), 64 + 128 + 64 + 128);
        // Freed neighbours become one gap.
        assert_eq!(first_fit(&stream(&[64, 64, 64, 64, -2, -3, 128])), 256);
        // What is freed at the end is no gap: the arena begins again.
        assert_eq!(first_fit(&stream(&[64, 128, -2, 256])), 320);
        assert_eq!(first_fit(&stream(&[1])), LINE);
        assert_eq!(first_fit(&stream(&[])), 0);
    }

    #[test]
    fn first_fit_begins_blocks_where_they_ask() {
        let mut stream = stream(&[64, 64, 64]);
        stream.blocks[1].align = 4096;
        // The third fits into what was skipped for the second.
        assert_eq!(first_fit(&stream), 4096 + 64);
    }

    #[test]
    fn best_fit_takes_the_closest_gap_and_pays_headers() {
        // Chunks of 112 and 1008, with walls of 32 between.
        let walls = [1000, 1, 100, 1, -1, -3];
        assert_eq!(best_fit(&stream(&walls)), 1008 + 32 + 112 + 32);
        assert_eq!(best_fit(&stream(&[&walls[..], &[90, 990]].concat())), 1008 + 32 + 112 + 32);
        // 900 leaves a rest of 96, too little for a chunk of 112.
        assert_eq!(best_fit(&stream(&[&walls[..], &[900, 90, 100]].concat())), 1008 + 32 + 112 + 32 + 112);
        // Neighbours of 112 become 224, less a header that a block may use: 216.
        assert_eq!(best_fit(&stream(&[100, 100, 1, -1, -2, 216])), 256);
        assert_eq!(best_fit(&stream(&[100, 100, 1, -1, -2, 217])), 256 + 240);
        assert_eq!(best_fit(&stream(&[])), 0);
    }

    #[test]
    fn best_fit_takes_more_for_alignment_and_gives_it_back() {
        let mut stream = stream(&[1000, 1000]);
        stream.blocks[1].align = 64;
        // The second begins at 1024; for a moment it has 1008 + 64 + 32 bytes and a header.
        assert_eq!(best_fit(&stream), 1008 + 1120);
    }

    #[test]
    fn pools_keep_the_most_blocks_of_each_class() {
        // Two of 128 at once, one of 256 later: nothing is shared between the classes.
        let stream = stream(&[100, 120, -1, -2, 200, -3, 100]);
        assert_eq!(pool(&stream, power_of_two), 2 * 128 + 256);
        assert_eq!(pool(&stream, four_to_a_doubling), 112 + 128 + 224);
    }

    #[test]
    fn classes_are_those_of_jemalloc() {
        let class = |size| four_to_a_doubling(&Request { size, align: 1 });
        let classes: Vec<u64> = [1, 16, 17, 128, 129, 160, 161, 257, 4097, 100_000].map(class).into();
        assert_eq!(classes, [16, 16, 32, 128, 160, 160, 192, 320, 5120, 114_688]);
        assert_eq!(four_to_a_doubling(&Request { size: 200, align: 64 }), 256);
        assert_eq!(power_of_two(&Request { size: 5, align: 64 }), 64);
    }

    /// Random requests: mostly of a few sizes, some freed at once, some late.
    fn random(seed: u64, count: usize) -> Stream {
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut roll = move |sides: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice >> 11) % sides
        };
        let mut stream = Stream::default();
        let mut live: Vec<usize> = Vec::new();
        for _ in 0..count {
            if roll(5) < 2 && !live.is_empty() {
                let freed = live.swap_remove(roll(live.len() as u64) as usize);
                stream.actions.push(Action::Free(freed));
            } else {
                let size = if roll(2) == 0 { 64 * (1 + roll(8)) } else { roll(3000) };
                let align = [1, 16, 16, 64, 64, 256][roll(6) as usize];
                live.push(stream.blocks.len());
                stream.actions.push(Action::Allocate(stream.blocks.len()));
                stream.blocks.push(Request { size, align });
            }
            if roll(400) == 0 {
                stream.actions.extend(live.drain(..).map(Action::Free));
            }
        }
        stream.ends.push(stream.actions.len());
        stream
    }

    /// First fit on a map of lines, address by address.
    fn first_fit_by_map(stream: &Stream) -> u64 {
        let mut map: Vec<bool> = Vec::new();
        let mut places = vec![0..0; stream.blocks.len()];
        for action in &stream.actions {
            match *action {
                Action::Allocate(block) => {
                    let Request { size, align } = stream.blocks[block];
                    let lines = size.max(1).div_ceil(LINE) as usize;
                    let step = (align / LINE).max(1) as usize;
                    let fits = |at: &usize| (*at..at + lines).all(|line| !map.get(line).unwrap_or(&false));
                    let at = (0..).step_by(step).find(fits).expect("there is no end of lines");
                    map.resize(map.len().max(at + lines), false);
                    map[at..at + lines].fill(true);
                    places[block] = at..at + lines;
                }
                Action::Free(block) => map[places[block].clone()].fill(false),
            }
        }
        map.len() as u64 * LINE
    }

    /// Best fit on a list of chunks in order of address: (bytes, in use).
    fn best_fit_by_list(stream: &Stream) -> u64 {
        fn take(list: &mut Vec<(u64, bool)>, bytes: u64, extent: &mut u64) -> u64 {
            let best =
                (0..list.len()).filter(|&i| !list[i].1 && list[i].0 >= bytes).min_by_key(|&i| list[i].0);
            let index = best.unwrap_or_else(|| {
                // The top grows: what is free at the end is its.
                if list.last().is_some_and(|chunk| !chunk.1) {
                    list.pop();
                }
                list.push((bytes, false));
                list.len() - 1
            });
            if list[index].0 - bytes >= 32 {
                let rest = list[index].0 - bytes;
                list[index].0 = bytes;
                list.insert(index + 1, (rest, false));
            }
            list[index].1 = true;
            *extent = (*extent).max(list.iter().map(|chunk| chunk.0).sum());
            list[..index].iter().map(|chunk| chunk.0).sum()
        }
        fn release(list: &mut Vec<(u64, bool)>, at: u64) {
            let mut start = 0;
            for chunk in list.iter_mut() {
                chunk.1 &= start != at;
                start += chunk.0;
            }
            let mut index = 1;
            while index < list.len() {
                if !list[index].1 && !list[index - 1].1 {
                    list[index - 1].0 += list.remove(index).0;
                } else {
                    index += 1;
                }
            }
            if list.last().is_some_and(|chunk| !chunk.1) {
                list.pop();
            }
        }
        /// Cuts the chunk in use at an address in two, both in use.
        fn cut(list: &mut Vec<(u64, bool)>, at: u64, bytes: u64) {
            let mut start = 0;
            let index = list.iter().position(|chunk| {
                start += chunk.0;
                start - chunk.0 == at
            });
            let index = index.expect("a chunk");
            let rest = list[index].0 - bytes;
            list[index].0 = bytes;
            list.insert(index + 1, (rest, true));
        }
        let mut list = Vec::new();
        let mut extent = 0;
        let mut places = vec![0; stream.blocks.len()];
        for action in &stream.actions {
            match *action {
                Action::Allocate(block) => {
                    let Request { size, align } = stream.blocks[block];
                    let bytes = (size + 8).next_multiple_of(16).max(32);
                    if align <= 16 {
                        places[block] = take(&mut list, bytes, &mut extent);
                        continue;
                    }
                    let room = (bytes + align + 32 + 8).next_multiple_of(16);
                    let mut at = take(&mut list, room, &mut extent);
                    if !(at + 16).is_multiple_of(align) {
                        let mut place = (at + 16).next_multiple_of(align) - 16;
                        if place - at < 32 {
                            place += align;
                        }
                        cut(&mut list, at, place - at);
                        release(&mut list, at);
                        at = place;
                    }
                    let mut start = 0;
                    let room = list.iter().find_map(|chunk| {
                        start += chunk.0;
                        (start - chunk.0 == at).then_some(chunk.0)
                    });
                    if room.expect("a chunk") > bytes + 32 {
                        cut(&mut list, at, bytes);
                        release(&mut list, at + bytes);
                    }
                    places[block] = at;
                }
                Action::Free(block) => release(&mut list, places[block]),
            }
        }
        extent
    }

    #[test]
    fn first_and_best_fit_are_what_a_slow_and_obvious_search_finds() {
        for seed in 1..40 {
            let stream = random(seed, 600);
            assert_eq!(first_fit(&stream), first_fit_by_map(&stream), "seed {seed}");
            assert_eq!(best_fit(&stream), best_fit_by_list(&stream), "seed {seed}");
        }
    }

    #[test]
    fn nothing_needs_less_than_the_load() {
        for seed in 1..40 {
            let stream = random(seed, 600);
            let load = stream.load();
            assert!(first_fit(&stream) >= load && best_fit(&stream) >= load, "seed {seed}");
            assert!(pool(&stream, power_of_two) >= load, "seed {seed}");
            assert!(pool(&stream, four_to_a_doubling) >= load, "seed {seed}");
            assert!(super::super::deeprec::bins(&stream).bytes >= load, "seed {seed}");
        }
    }
}
