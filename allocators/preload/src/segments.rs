//! The library's read-only segments: code that learning and planning have touched goes back to the page
//! cache.
//!
//! While a plan serves, a small part of the code is run. The rest stays mapped once it was touched, and counts as the
//! process's memory. It is clean memory of a file, and comes again at the next touch.

unsafe extern "C" {
    /// The library's ELF header, where the linker has put it (hidden).
    static __ehdr_start: libc::Elf64_Ehdr;
    /// Behind the code that every process runs (hidden, `start.ld`).
    static hot_end: u8;
    /// Around the relocations and what unwinding reads (hidden, `apart.ld`).
    #[cfg(relocations_apart)]
    static read_once_begin: u8;
    #[cfg(relocations_apart)]
    static read_once_end: u8;
}

/// Gives the pages back that only the dynamic linker has read, when it has.
#[cfg(relocations_apart)]
pub(crate) fn end_loading() {
    let Some(page) = page() else { return };
    let (begin, end) = (&raw const read_once_begin, (&raw const read_once_end).addr());
    let first = begin.addr().next_multiple_of(page);
    let bytes = end.saturating_sub(first).next_multiple_of(page);
    // SAFETY: as in `give_back`.
    unsafe { libc::madvise(begin.with_addr(first).cast_mut().cast(), bytes, libc::MADV_DONTNEED) };
}

/// Relocations share their pages with constants.
#[cfg(not(relocations_apart))]
pub(crate) fn end_loading() {}

pub(crate) fn page() -> Option<usize> {
    // SAFETY: no conditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
}

/// Gives the pages of code and constants back, but for what every process runs, which would come again at once: breakpoints that a debugger has
/// set there (in `malloc`, say) stay.
pub(crate) fn give_back() {
    let Some(page) = page() else { return };
    let (start, hot) = (&raw const __ehdr_start, (&raw const hot_end).addr());
    // SAFETY: the header and the program headers behind it are those of this library, mapped for as long as this code is. A
    // segment that is not writable holds what the file holds, so that its pages can come again from there.
    unsafe {
        let headers = start.byte_add((*start).e_phoff as usize).cast::<libc::Elf64_Phdr>();
        for header in (0..usize::from((*start).e_phnum)).map(|index| &*headers.add(index)) {
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
                let first = start.byte_add(header.p_vaddr as usize & !(page - 1));
                let end = start.addr() + (header.p_vaddr + header.p_memsz) as usize;
                let holds_hot = header.p_flags & libc::PF_X != 0;
                let first = if holds_hot { first.with_addr(hot.next_multiple_of(page)) } else { first };
                let bytes = end.saturating_sub(first.addr()).next_multiple_of(page);
                libc::madvise(first.cast_mut().cast(), bytes, libc::MADV_DONTNEED);
            }
        }
    }
}
