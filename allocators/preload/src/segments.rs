//! The library's read-only segments: code that learning and planning have touched goes back to the page
//! cache.
//!
//! While a plan serves, a small part of the code is run. The rest stays mapped once it was touched, and counts as the
//! process's memory. It is clean memory of a file, and comes again at the next touch.

use statistic::os;

unsafe extern "C" {
    /// The library's ELF header, where the linker has put it (hidden).
    static __ehdr_start: libc::Elf64_Ehdr;
}

/// Gives the pages of code and constants back. Where a debugger is attached they stay: its breakpoints are in them.
pub(crate) fn give_back() {
    // SAFETY: no conditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Some(page) = usize::try_from(page).ok().filter(|_| !os::is_traced()) else { return };
    let start = &raw const __ehdr_start;
    // SAFETY: the header and the program headers behind it are those of this library, mapped for as long as this code is. A
    // segment that is not writable holds what the file holds, so that its pages can come again from there.
    unsafe {
        let headers = start.byte_add((*start).e_phoff as usize).cast::<libc::Elf64_Phdr>();
        for header in (0..usize::from((*start).e_phnum)).map(|index| &*headers.add(index)) {
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
                let first = header.p_vaddr as usize & !(page - 1);
                let bytes = (header.p_vaddr + header.p_memsz) as usize - first;
                let place = start.byte_add(first).cast_mut().cast();
                libc::madvise(place, bytes.next_multiple_of(page), libc::MADV_DONTNEED);
            }
        }
    }
}
