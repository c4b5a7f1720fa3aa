//! glibc's own malloc and its family, found in glibc's own image.
//!
//! Their names lead to ourselves (`malloc`), or to another allocator that was loaded behind us: jemalloc's library has a
//! `malloc_usable_size` too, mimalloc's even a `__libc_malloc`, and neither knows blocks of glibc's. So the image of the C
//! library is looked for among those that the dynamic linker has loaded, and its table of symbols is read, as the dynamic
//! linker would (System V ABI, chapter 5; the hash table is that of GNU's `.gnu.hash`). This allocates nothing and takes no
//! lock. It is done once, by whoever allocates first: at the process's start, or in our constructor under the dynamic
//! linker's lock.

use crate::segments;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use statistic::os;

/// The name by which programs ask for the C library.
const SONAME: &CStr = c"libc.so.6";

/// A function of glibc's.
pub(crate) struct Function {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Where it is; null before [`find`].
    #[inline(always)]
    pub(crate) fn address(&self) -> *mut c_void {
        self.address.load(Relaxed)
    }
}

pub(crate) static MALLOC: Function = Function::new(c"malloc");
pub(crate) static FREE: Function = Function::new(c"free");
pub(crate) static CALLOC: Function = Function::new(c"calloc");
pub(crate) static REALLOC: Function = Function::new(c"realloc");
static MEMALIGN: Function = Function::new(c"memalign");
static USABLE_SIZE: Function = Function::new(c"malloc_usable_size");
static TRIM: Function = Function::new(c"malloc_trim");
static MALLOPT: Function = Function::new(c"mallopt");
static STATS: Function = Function::new(c"malloc_stats");
static INFO: Function = Function::new(c"malloc_info");
/// Since glibc 2.33.
static MALLINFO2: Function = Function::new(c"mallinfo2");

/// Finds the functions. A process whose C library has not all of them is not one of glibc's, and ends.
#[cold]
pub(crate) fn find() {
    let image = Image::of_libc();
    let required =
        [&MALLOC, &FREE, &CALLOC, &REALLOC, &MEMALIGN, &USABLE_SIZE, &TRIM, &MALLOPT, &STATS, &INFO];
    for function in required {
        let Some(address) = image.as_ref().and_then(|image| image.function(function.name)) else {
            let name = function.name.to_str().unwrap_or("?");
            os::log_stderr(format_args!(
                "no {name} in the C library {}: libstepalloc.so is for programs of glibc's",
                SONAME.to_str().unwrap_or("?")
            ));
            // SAFETY: ends the process; nothing of it was begun.
            unsafe { libc::_exit(127) };
        };
        function.address.store(address, Relaxed);
    }
    let newer = image.and_then(|image| image.function(MALLINFO2.name));
    MALLINFO2.address.store(newer.unwrap_or(ptr::null_mut()), Relaxed);
}

/// An image that the dynamic linker has loaded, by the tables of its dynamic section.
struct Image {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    names: *const c_char,
    hash: *const u32,
}

/// What the dynamic linker tells debuggers (`struct r_debug` and `struct link_map` of `<link.h>`).
#[repr(C)]
struct Debug {
    version: c_int,
    images: *const LinkMap,
}

#[repr(C)]
struct LinkMap {
    base: usize,
    path: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: usize,
    value: usize,
}

unsafe extern "C" {
    /// Exported by ld.so.
    static _r_debug: Debug;
}

// Tags of a dynamic section.
const END: usize = 0;
const STRING_TABLE: usize = 5;
const SYMBOL_TABLE: usize = 6;
const NAME: usize = 14;
const GNU_HASH: usize = 0x6fff_fef5;
/// The type of a symbol that is a function.
const FUNCTION: u8 = 2;

impl Image {
    fn of_libc() -> Option<Self> {
        // SAFETY: the C library is among the images that the process has begun with, which come first in the list, and stay. Those are
        // complete before anything runs.
        unsafe {
            let mut image = _r_debug.images;
            while let Some(map) = image.as_ref() {
                if let Some(found) = Self::named(map) {
                    return Some(found);
                }
                image = map.next;
            }
        }
        None
    }

    /// The tables of an image, if it is the C library.
    ///
    /// # Safety
    /// The image is loaded.
    unsafe fn named(map: &LinkMap) -> Option<Self> {
        let mut found = [0; 4];
        // SAFETY: a dynamic section ends with a null tag; what it names lies in its image.
        unsafe {
            let mut entry = map.dynamic;
            while !entry.is_null() && (*entry).tag != END {
                let Dynamic { tag, value } = *entry;
                match tag {
                    STRING_TABLE => found[0] = value,
                    SYMBOL_TABLE => found[1] = value,
                    GNU_HASH => found[2] = value,
                    NAME => found[3] = value,
                    _ => {}
                }
                entry = entry.add(1);
            }
            if found.contains(&0) {
                return None;
            }
            // The dynamic linker makes them addresses, where it may write to the section.
            let address = |value: usize| if value < map.base { map.base + value } else { value };
            let names: *const c_char = ptr::with_exposed_provenance(address(found[0]));
            let is_libc = CStr::from_ptr(names.add(found[3])) == SONAME;
            is_libc.then(|| Self {
                base: map.base,
                symbols: ptr::with_exposed_provenance(address(found[1])),
                names,
                hash: ptr::with_exposed_provenance(address(found[2])),
            })
        }
    }

    /// Where a function is that the image exports.
    fn function(&self, name: &CStr) -> Option<*mut c_void> {
        let symbol = self.symbol(name)?;
        // SAFETY: a symbol of the image's table.
        Some(ptr::with_exposed_provenance_mut(self.base + unsafe { (*symbol).st_value } as usize))
    }

    /// The symbol of a function that the image exports.
    fn symbol(&self, name: &CStr) -> Option<*const libc::Elf64_Sym> {
        let hash =
            name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33) + u32::from(byte));
        // SAFETY: the table has its length at its beginning: buckets, the first symbol in it, words of the filter behind these
        // four numbers; then the buckets, and a chain for each that ends with an odd number.
        unsafe {
            let [buckets, first, words] = [0, 1, 2].map(|at| *self.hash.add(at));
            let bucket = self.hash.add(4 + words as usize * (size_of::<usize>() / size_of::<u32>()));
            let chain = bucket.add(buckets as usize);
            let mut at = *bucket.add((hash % buckets) as usize);
            while at >= first {
                let place = self.symbols.add(at as usize);
                let symbol = &*place;
                let known = *chain.add((at - first) as usize);
                let is_defined = symbol.st_info & 0xf == FUNCTION && symbol.st_shndx != 0;
                if known | 1 == hash | 1
                    && is_defined
                    && CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name
                {
                    return Some(place);
                }
                if known & 1 == 1 {
                    break;
                }
                at += 1;
            }
        }
        None
    }

    /// The access that the program header of an address in the image asks for (`PROT_...`).
    fn protection(&self, address: usize) -> Option<c_int> {
        let header: *const libc::Elf64_Ehdr = ptr::with_exposed_provenance(self.base);
        // SAFETY: the C library's image begins with its ELF header, at its base; the program headers are mapped with it.
        unsafe {
            let header = &*header;
            if header.e_ident[..4] != *b"\x7fELF" {
                return None;
            }
            let headers = ptr::from_ref(header).byte_add(header.e_phoff as usize).cast::<libc::Elf64_Phdr>();
            let offset = (address - self.base) as u64;
            let segment =
                (0..usize::from(header.e_phnum)).map(|index| &*headers.add(index)).find(|segment| {
                    segment.p_type == libc::PT_LOAD
                        && (segment.p_vaddr..segment.p_vaddr + segment.p_memsz).contains(&offset)
                })?;
            let bits = [
                (libc::PF_R, libc::PROT_READ),
                (libc::PF_W, libc::PROT_WRITE),
                (libc::PF_X, libc::PROT_EXEC),
            ];
            Some(
                bits.iter()
                    .filter(|(flag, _)| segment.p_flags & flag != 0)
                    .fold(0, |all, (_, access)| all | access),
            )
        }
    }
}

/// Has whoever looks a function up in the C library from now on find another; of those of them that the
/// system lets be changed, as the table of symbols cannot be written to otherwise.
///
/// # Safety
/// `new` does what the C library's function does, for as long as the process lives. Nobody else is here.
pub(crate) unsafe fn redirect(functions: &[(&CStr, *const c_void)]) {
    let (Some(image), Some(page)) = (Image::of_libc(), segments::page()) else { return };
    for (name, new) in functions {
        // Older ones do without some.
        let Some(symbol) = image.symbol(name) else { continue };
        let Some(protection) = image.protection(symbol.addr()) else { return };
        // A symbol is 24 bytes, of which the value's 8 lie in one page.
        // SAFETY: a field of it.
        let value = unsafe { &raw const (*symbol).st_value };
        let start = ptr::with_exposed_provenance_mut::<c_void>(value.addr() & !(page - 1));
        let allow = |access| {
            // SAFETY: the C library's own page, of which more is allowed than before, or what was.
            unsafe { libc::mprotect(start, page, access) == 0 }
        };
        if !allow(protection | libc::PROT_WRITE) {
            return;
        }
        // SAFETY: an aligned word, writable now. The dynamic linker reads it as a whole, and adds the base.
        unsafe {
            let value = AtomicU64::from_ptr(value.cast_mut());
            value.store(new.addr().wrapping_sub(image.base) as u64, Relaxed);
        }
        allow(protection);
    }
}

/// Functions of the C library's types, which go on to its own.
macro_rules! go_on {
    ($($name:ident: $function:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            type Type = unsafe extern "C" fn($($type),*) $(-> $result)?;
            // SAFETY: the C library's function has this type, and was found before; the rest is the caller's promise.
            unsafe { transmute::<*mut c_void, Type>($function.address())($($argument),*) }
        }
    )*};
}
go_on! {
    malloc: MALLOC(size: usize) -> *mut c_void;
    free: FREE(block: *mut c_void);
    calloc: CALLOC(count: usize, size: usize) -> *mut c_void;
    realloc: REALLOC(block: *mut c_void, size: usize) -> *mut c_void;
    memalign: MEMALIGN(align: usize, size: usize) -> *mut c_void;
    usable_size: USABLE_SIZE(block: *mut c_void) -> usize;
    info: INFO(options: c_int, stream: *mut libc::FILE) -> c_int;
    trim_by: TRIM(pad: usize) -> c_int;
    mallopt_by: MALLOPT(parameter: c_int, value: c_int) -> c_int;
    stats_by: STATS();
    mallinfo2_by: MALLINFO2() -> libc::mallinfo2;
}

pub(crate) fn trim(pad: usize) -> c_int {
    // SAFETY: no conditions, here and below.
    unsafe { trim_by(pad) }
}

pub(crate) fn mallopt(parameter: c_int, value: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { mallopt_by(parameter, value) }
}

/// Writes its report to standard error.
pub(crate) fn stats() {
    // SAFETY: as above.
    unsafe { stats_by() }
}

pub(crate) fn mallinfo2() -> Option<libc::mallinfo2> {
    // SAFETY: as above; it is there.
    (!MALLINFO2.address().is_null()).then(|| unsafe { mallinfo2_by() })
}
