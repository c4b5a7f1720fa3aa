//! Pages: reserved, mapped, moved, and given back.

use super::{
    BASE_ALIGN, PAGE, keeping_errno, log_stderr, read_file, read_file_at_start, with_own_descriptors,
};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::fs::File;
use std::io::{self, Read};

/// Zeroed, private, readable and writable pages; resident only where touched. `None` when the system has none.
pub(crate) fn map(bytes: usize) -> Option<*mut u8> {
    map_with(0, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE)
}

/// The same for what is written as a whole at once: all pages are there from the beginning, in one call instead of a fault each.
pub(crate) fn map_resident(bytes: usize) -> Option<*mut u8> {
    map_with(0, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE | libc::MAP_POPULATE)
}

/// Undoes [`map`], [`map_resident`], [`reserve`] or [`reserve_anywhere`].
///
/// # Safety
/// The range is one of a call of these, and nobody uses it.
pub(crate) unsafe fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { munmap(start, bytes) };
}

// By number: the preloaded library leads calls of the C library's `munmap` and `madvise` to functions that tell mimalloc of
// success whatever the kernel says. What we take for unmapped, or for zero, must be so.

/// The system call, whether it succeeded.
///
/// # Safety
/// As for `munmap(2)`.
unsafe fn munmap(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_munmap, start, bytes) == 0 }
}

/// The system call, whether it succeeded.
///
/// # Safety
/// As for `madvise(2)`.
pub(super) unsafe fn madvise(start: *mut u8, bytes: usize, advice: i32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_madvise, start, bytes, advice) == 0 }
}

fn map_with(hint: usize, bytes: usize, protection: i32, more: i32) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
    // SAFETY: a fresh anonymous mapping replaces nothing that exists: the address is a wish only.
    let start = unsafe { libc::mmap(ptr::without_provenance_mut(hint), bytes, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}

/// Reserves `bytes` of address space aligned to [`BASE_ALIGN`], without memory behind it, below all other memory where
/// possible: so that one comparison separates most addresses from those in the range.
pub(crate) fn reserve(bytes: usize) -> Option<*mut u8> {
    // Programs, their heaps and their mappings lie above 32 TiB, mimalloc's areas above 2 TiB; only programs linked to a
    // fixed address have their heap lower. valgrind maps all within the first gigabytes but for the very beginning, where
    // a small range finds room.
    const MIB: usize = 1 << 20;
    for (hint, most) in [(16 * MIB, 32 * MIB), (MIB * MIB, MIB * MIB)] {
        // The C library's heap grows upwards, and must not meet us.
        let room = hint.checked_sub(heap_end()).unwrap_or(usize::MAX);
        if bytes > most || room < MIB * MIB / 2 {
            continue;
        }
        let start = map_with(hint, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)?;
        if start as usize == hint {
            return Some(start);
        }
        // SAFETY: mapped just now, and known here only.
        unsafe { unmap(start, bytes) };
    }
    reserve_aligned(bytes, libc::MAP_NORESERVE)
}

/// A range of low addresses where nothing is mapped, for [`map_at`]; as in [`reserve`], one comparison
/// separates most addresses from those in it. Nothing is reserved: nobody else maps there unless he names the
/// address.
pub(crate) fn find_low_range(bytes: usize) -> Option<*mut u8> {
    // The address sanitizer keeps the first for itself.
    [1 << 40, 1 << 45].into_iter().find_map(|low| {
        let start = map_with(low, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)?;
        // SAFETY: mapped just now, and known here only.
        unsafe { unmap(start, bytes) };
        (start as usize == low).then_some(start)
    })
}

/// Maps pages at an address where nothing is mapped, usable or only reserved; `false` where something is, or the system refuses.
pub(crate) fn map_at(start: *mut u8, bytes: usize, usable: bool) -> bool {
    let protection = if usable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    match map_with(start as usize, bytes, protection, libc::MAP_FIXED_NOREPLACE) {
        Some(mapped) if mapped == start => true,
        Some(elsewhere) => {
            // Kernels before Linux 4.17 take the address for a wish.
            // SAFETY: mapped just now, and known here only.
            unsafe { unmap(elsewhere, bytes) };
            false
        }
        None => false,
    }
}

/// Maps pages anew where some of our own are: their memory goes back, and their mapping is one with others of its kind beside it.
///
/// # Safety
/// The range is whole pages of a private anonymous mapping of ours, readable and writable, and nobody needs its content.
pub(crate) unsafe fn map_anew(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. A kernel that fails has left the mapping as it was, or has unmapped it already, and then there is room
    // for it at the second time; where not even that holds, the write in `discard` ends the process.
    keeping_errno(|| unsafe {
        if !map_over(start, bytes) && !map_over(start, bytes) {
            discard(start, bytes);
        }
    });
}

/// Maps fresh pages over whatever is there; `false` where the system refuses.
///
/// # Safety
/// The range is whole pages of ours, mapped or not, and nobody needs its content.
unsafe fn map_over(start: *mut u8, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe {
        libc::mmap(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) != libc::MAP_FAILED
    }
}

/// What was mapped is so no more: the process ends here, before it runs into the hole.
#[cold]
fn lost(start: *mut u8, bytes: usize) -> ! {
    log_stderr(format_args!("the system does not map the {bytes} bytes at {start:p} again"));
    std::process::abort();
}

/// Bytes of the machine's memory.
pub(crate) fn memory_bytes() -> u64 {
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills the structure whose address it is given; zeroed is a valid value before that.
    let info = unsafe {
        libc::sysinfo(info.as_mut_ptr());
        info.assume_init()
    };
    info.totalram.saturating_mul(info.mem_unit.into())
}

/// The same wherever there is room. When it is [committed](commit), the system refuses what it cannot have memory for; that of
/// [`reserve`] it gives as long as there is any.
pub(crate) fn reserve_anywhere(bytes: usize) -> Option<*mut u8> {
    reserve_aligned(bytes, 0)
}

fn reserve_aligned(bytes: usize, more: i32) -> Option<*mut u8> {
    let start = map_with(0, bytes.checked_add(BASE_ALIGN)?, libc::PROT_NONE, more)?;
    let skip = start.align_offset(BASE_ALIGN);
    let aligned = start.wrapping_add(skip);
    for (rest, length) in [(start, skip), (aligned.wrapping_add(bytes), BASE_ALIGN - skip)] {
        if length > 0 {
            // SAFETY: whole pages of what was mapped just now, beside the aligned range.
            unsafe { unmap(rest, length) };
        }
    }
    Some(aligned)
}

/// Where the C library's heap ends now; 0 where it has none.
fn heap_end() -> usize {
    // SAFETY: asks for the present end and moves nothing.
    let end = unsafe { libc::sbrk(0) } as usize;
    if end == usize::MAX { 0 } else { end }
}

/// Makes reserved pages readable and writable; `false` when the system refuses.
pub(crate) fn commit(start: *mut u8, bytes: usize) -> bool {
    // SAFETY: the range lies inside a mapping of ours, whose content stays.
    unsafe { libc::mprotect(start.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

/// The system is set to never use huge pages.
static HUGE_PAGES_ARE_OFF: AtomicBool = AtomicBool::new(false);

pub(super) fn read_huge_pages() {
    let mut setting = [0; 64];
    let setting = read_file_at_start(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut setting);
    HUGE_PAGES_ARE_OFF.store(setting.ends_with(b"[never]\n"), Relaxed);
}

/// Asks for huge pages behind a range; a refusal changes nothing.
pub(crate) fn advise_huge(start: *mut u8, bytes: usize) {
    // SAFETY: advice on our own mapping changes no content.
    unsafe { madvise(start, bytes, libc::MADV_HUGEPAGE) };
}

/// Puts a huge page behind each [`BASE_ALIGN`] of a range that has all of its memory already, so that it takes no more; the
/// range begins at a multiple of that. (Pages that were only read count as memory.) A kernel that cannot (before Linux 6.1),
/// or that was set to never do so when this process began, changes nothing.
pub(crate) fn unite_pages(start: *mut u8, bytes: usize) {
    if HUGE_PAGES_ARE_OFF.load(Relaxed) {
        return;
    }
    // SAFETY: advice on our own mapping that changes no content.
    let collapse =
        |from: usize, to: usize| unsafe { madvise(start.wrapping_add(from), to - from, libc::MADV_COLLAPSE) };
    let unite = |from: usize, to: usize| {
        if from < to && !collapse(from, to) {
            (from..to).step_by(BASE_ALIGN).for_each(|at| _ = collapse(at, at + BASE_ALIGN));
        }
    };
    // What is together is united together, as each call is a burden to all processors; but a call ends at the first mapping that is too
    // short, as pages that were moved there have left them behind.
    let mut from = 0;
    let end = bytes & !(BASE_ALIGN - 1);
    for at in (0..end).step_by(BASE_ALIGN) {
        if !is_resident(start.wrapping_add(at)) {
            unite(from, at);
            from = at + BASE_ALIGN;
        }
    }
    unite(from, end);
}

/// True where [`BASE_ALIGN`] bytes from `start` on have all of their memory.
fn is_resident(start: *mut u8) -> bool {
    // A byte for each page, of which there are fewer where pages are larger.
    const PAGES: usize = BASE_ALIGN / (4 << 10);
    let mut resident = [1u8; PAGES];
    // SAFETY: the kernel writes no more bytes than there are pages.
    let status = unsafe { libc::mincore(start.cast(), BASE_ALIGN, resident.as_mut_ptr()) };
    status == 0 && resident.iter().all(|page| page & 1 != 0)
}

/// Gives a range memory at once; a kernel that cannot (before Linux 5.14) changes nothing.
pub(crate) fn populate(start: *mut u8, bytes: usize) {
    // SAFETY: advice on our own mapping that changes no content.
    unsafe { madvise(start, bytes, libc::MADV_POPULATE_WRITE) };
}

/// Returns the whole pages inside the range to the system; they read as zero afterwards. Their bytes.
///
/// # Safety
/// The range is part of a private anonymous mapping of ours, readable and writable, and nobody needs its content.
pub(crate) unsafe fn discard(start: *mut u8, bytes: usize) -> usize {
    let first = (start as usize).next_multiple_of(PAGE);
    let end = (start as usize + bytes) & !(PAGE - 1);
    if first >= end {
        return 0;
    }
    // SAFETY: only whole pages inside the caller's range, whose content the caller gave up.
    let advise = |advice| unsafe { madvise(first as *mut u8, end - first, advice) };
    keeping_errno(|| {
        // Pages that are locked in memory go back by an advice of their own, since Linux 5.18.
        if !advise(libc::MADV_DONTNEED) && !advise(libc::MADV_DONTNEED_LOCKED) {
            // SAFETY: as above.
            unsafe { (first as *mut u8).write_bytes(0, end - first) };
        }
    });
    end - first
}

/// Moves the memory behind a range to another one, whose own memory goes back to the system; the source reads as zeros then. `false` where
/// the kernel does not: the destination is mapped anew and reads as zeros then, and of the source's pages any may have lost their content.
///
/// # Safety
/// Both are whole pages of private anonymous mappings of ours, readable and writable, do not overlap, and nobody else uses them, nor needs
/// their content.
pub(crate) unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise. The kernel unmaps the destination before it looks at the source: where it fails then (across mappings
    // before Linux 6.17, or without room for another mapping), a hole is left.
    keeping_errno(|| unsafe {
        let moved = remap(from, to, bytes);
        if !moved && !map_over(to, bytes) {
            lost(to, bytes);
        }
        moved
    })
}

/// As [`move_pages`], with the content in any case: what the kernel does not move is copied. `false` where it did not move all.
///
/// # Safety
/// As there, but for the source's content.
pub(crate) unsafe fn move_content(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise. The kernel moves mapping by mapping, each as a whole or not at all (it undoes what it began), so a
    // failure may come after some have moved. Of an empty destination it is known which: what is mapped there afterwards has moved, and
    // its source reads as zeros; behind what is not, the source is as it was. Nobody maps anything there meanwhile who does not name the
    // address, as where the range ends.
    keeping_errno(|| unsafe {
        if !munmap(to, bytes) {
            // Both are as they were.
            ptr::copy_nonoverlapping(from, to, bytes);
        } else if remap(from, to, bytes) {
            return true;
        } else {
            let page = (libc::sysconf(libc::_SC_PAGESIZE) as usize).min(PAGE);
            for at in (0..bytes).step_by(page) {
                let (source, place) = (from.add(at), to.wrapping_add(at));
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                match map_with(place as usize, page, protection, libc::MAP_FIXED_NOREPLACE) {
                    Some(_) => ptr::copy_nonoverlapping(source, place, page),
                    None if io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST) => {}
                    None => lost(place, page),
                }
            }
        }
        discard(from, bytes);
        false
    })
}

/// # Safety
/// As for [`move_content`]. Where this fails, it says nothing of either range.
unsafe fn remap(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller's promise.
    unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to.cast::<libc::c_void>()) != libc::MAP_FAILED }
}

/// Whether the kernel moves pages of several mappings together (since Linux 6.17). Where it does not, moves fail sooner or later: pages that
/// were moved are mappings of their own.
///
/// `false` too where the system promises no more memory than it has: a move gives up what was promised for its destination before it is
/// promised the same for its source, and another process may take it in between. And where memory that was moved away does not go back
/// afterwards: QEMU's user mode forgets what a source is (as of 7.2) and ignores the advice, and would leave old content where zeros are
/// expected.
pub(crate) fn moves_across_mappings() -> bool {
    let mut overcommit = [0; 4];
    if read_file(c"/proc/sys/vm/overcommit_memory", &mut overcommit).starts_with(b"2") {
        return false;
    }
    let Some(start) = map(4 * PAGE) else { return false };
    let [first, second, third] = [0, 1, 2].map(|page| start.wrapping_add(page * PAGE));
    // SAFETY: mapped just now, and known here only.
    unsafe {
        second.write(1);
        let mut moved = madvise(second, PAGE, libc::MADV_DONTDUMP)
            && move_pages(first, third, 2 * PAGE)
            && third.add(PAGE).read() == 1;
        if moved {
            second.write_volatile(1);
            moved = madvise(first, 4 * PAGE, libc::MADV_DONTNEED) && second.read_volatile() == 0;
        }
        unmap(start, 4 * PAGE);
        moved
    }
}

/// Mappings of this process; `None` where the system does not say.
pub(crate) fn mappings() -> Option<usize> {
    with_own_descriptors(|| {
        let mut file = File::open("/proc/self/maps").ok()?;
        let (mut buffer, mut count) = ([0; 4096], 0);
        loop {
            match file.read(&mut buffer).ok()? {
                0 => return Some(count),
                length => count += buffer[..length].iter().filter(|&&byte| byte == b'\n').count(),
            }
        }
    })
}

/// Bytes that are looked at together by [`zero`].
const ZERO_CHUNK: usize = 2 << 20;
/// A chunk goes back to the system, instead of being written, where less than one page in so many is resident.
const SPARSE: usize = 4;

/// Makes a range read as zeros. Memory that was never touched stays so: of large ranges `mincore` returns
/// what is resident.
///
/// # Safety
/// The range is part of a private anonymous mapping of ours, and the caller's alone.
pub(crate) unsafe fn zero(start: *mut u8, bytes: usize) {
    if bytes < ZERO_CHUNK {
        // SAFETY: the caller's promise.
        return unsafe { start.write_bytes(0, bytes) };
    }
    // Chunks to give back that were not yet, so that neighbours go together.
    let mut sparse = start..start;
    let mut at = start;
    let end = start.wrapping_add(bytes);
    // SAFETY: parts of the caller's range.
    unsafe {
        while at < end {
            let chunks = |count: usize| {
                let next = ((at as usize) / ZERO_CHUNK + count) * ZERO_CHUNK;
                next.min(end as usize) as *mut u8
            };
            let next = chunks(1);
            let length = next as usize - at as usize;
            if !is_sparse(at, length) {
                at.write_bytes(0, length);
                at = next;
                continue;
            }
            // As much as was sparse before is taken to be so behind this chunk too.
            let before = if sparse.end == at { at as usize - sparse.start as usize } else { 0 };
            let next = chunks(1 + before / ZERO_CHUNK);
            sparse = if before > 0 { sparse.start..next } else { give_back_as_zeros(sparse, at..next) };
            at = next;
        }
        give_back_as_zeros(sparse, end..end);
    }
}

/// Gives a range's whole pages back, and clears what is left of it. Returns the range that is to be given back next.
///
/// # Safety
/// As for [`zero`].
unsafe fn give_back_as_zeros(
    range: core::ops::Range<*mut u8>,
    next: core::ops::Range<*mut u8>,
) -> core::ops::Range<*mut u8> {
    let (start, end) = (range.start as usize, range.end as usize);
    let (first, last) = (start.next_multiple_of(PAGE).min(end), (end & !(PAGE - 1)).max(start));
    // SAFETY: the caller's promise.
    unsafe {
        if first < last {
            range.start.write_bytes(0, first - start);
            discard(first as *mut u8, last - first);
            (last as *mut u8).write_bytes(0, end - last);
        } else {
            range.start.write_bytes(0, end - start);
        }
    }
    next
}

/// Whether few pages of a range of at most [`ZERO_CHUNK`] bytes are resident.
fn is_sparse(start: *mut u8, bytes: usize) -> bool {
    const PAGES: usize = ZERO_CHUNK / (4 << 10) + 1;
    let mut resident = [0u8; PAGES];
    let first = (start as usize).next_multiple_of(PAGE);
    let length = (start as usize + bytes).saturating_sub(first);
    // SAFETY: the kernel writes a byte for each page, of which there are no more.
    let status = unsafe { libc::mincore(first as *mut _, length, resident.as_mut_ptr()) };
    // SAFETY: no conditions.
    let pages = length / unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4 << 10) as usize;
    status == 0 && resident.iter().filter(|&&page| page & 1 != 0).count() * SPARSE < pages
}
