//! Names of the functions that addresses lie in, from the symbol tables and debug information of the images they are of.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use addr2line::{Loader, demangle_auto};

/// Letters of a function's name that are kept.
const NAME: usize = 160;
/// Frames within one address (inlined functions) that are kept.
const INLINED: usize = 4;

/// Where the images of a process lie in its memory.
#[derive(Debug, Default, Clone)]
pub struct Maps(Vec<Map>);

#[derive(Debug, Clone)]
struct Map {
    start: u64,
    end: u64,
    offset: u64,
    path: PathBuf,
}

impl Maps {
    /// Reads a copy of /proc/PID/maps; empty where there is none.
    pub fn read(path: &Path) -> Maps {
        Maps(fs::read_to_string(path).unwrap_or_default().lines().filter_map(Map::parse).collect())
    }

    fn of(&self, address: u64) -> Option<&Map> {
        self.0.iter().find(|map| (map.start..map.end).contains(&address))
    }
}

impl Map {
    /// `start-end permissions offset device inode path`; `None` for what is no file.
    fn parse(line: &str) -> Option<Map> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let offset = fields.nth(1)?;
        // The path may have spaces; it is the rest.
        let path = line.find('/').map(|at| PathBuf::from(&line[at..]))?;
        Some(Map { start: number(start)?, end: number(end)?, offset: number(offset)?, path })
    }
}

/// Finds names, and remembers them.
pub struct Symbols<'a> {
    maps: &'a Maps,
    images: HashMap<PathBuf, Option<Image>>,
    known: HashMap<u64, Vec<Frame>>,
}

struct Image {
    loader: Loader,
    /// Addresses in the file are those in memory.
    is_fixed: bool,
}

/// A function in an image.
#[derive(Clone)]
struct Frame {
    name: String,
    /// The file's name.
    image: String,
}

impl<'a> Symbols<'a> {
    /// Of a process that had these images.
    pub fn new(maps: &'a Maps) -> Symbols<'a> {
        Symbols { maps, images: HashMap::new(), known: HashMap::new() }
    }

    /// A stack as one line, outermost frame first: the interpreter's frames in place of those it consists of.
    pub fn folded(&mut self, stack: &[u64], outer: Option<&str>) -> String {
        let frames: Vec<Frame> = stack.iter().flat_map(|&address| self.frames(address)).collect();
        let own = frames.iter().take_while(|frame| frame.is_ours()).count();
        let mut frames: Vec<&Frame> = frames[own..].iter().collect();
        frames.reverse();
        if outer.is_some()
            && let Some(last) = frames.iter().rposition(|frame| frame.is_of_interpreter())
        {
            frames.drain(..=last);
        }
        let names = frames.iter().map(|frame| frame.name.as_str());
        outer.into_iter().chain(names).collect::<Vec<_>>().join(";")
    }

    /// The functions that a call at this return address lies in, innermost first.
    fn frames(&mut self, returns_to: u64) -> Vec<Frame> {
        // The call itself is before it.
        let address = returns_to.saturating_sub(1);
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let frames = self.find(address);
        self.known.insert(address, frames.clone());
        frames
    }

    fn find(&mut self, address: u64) -> Vec<Frame> {
        let Some(map) = self.maps.of(address) else {
            return vec![Frame { name: format!("{address:#x}"), image: String::new() }];
        };
        let file = map.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let base = self.maps.0.iter().find(|other| other.path == map.path && other.offset == 0);
        let relative = address - base.map_or(map.start - map.offset, |base| base.start);
        let image = self.images.entry(map.path.clone()).or_insert_with(|| Image::open(&map.path));
        let names = image.as_ref().map(|image| image.names(if image.is_fixed { address } else { relative }));
        let mut names = names.unwrap_or_default();
        if names.is_empty() {
            names.push(format!("{file}+{relative:#x}"));
        }
        names.into_iter().map(|name| Frame { name, image: file.clone() }).collect()
    }
}

impl Image {
    fn open(path: &Path) -> Option<Image> {
        // ELF: the type is the number of two bytes at 16; 2 is a program that lies where its file says (gabi, "ELF Header").
        let mut head = [0; 18];
        std::io::Read::read_exact(&mut fs::File::open(path).ok()?, &mut head).ok()?;
        Some(Image { loader: Loader::new(path).ok()?, is_fixed: head[16..18] == [2, 0] })
    }

    fn names(&self, address: u64) -> Vec<String> {
        let mut names = Vec::new();
        if let Ok(mut frames) = self.loader.find_frames(address) {
            while let Ok(Some(frame)) = frames.next() {
                let Some(function) = frame.function.as_ref().and_then(|function| function.demangle().ok())
                else {
                    continue;
                };
                names.push(tidy(&function));
                if names.len() == INLINED {
                    break;
                }
            }
        }
        if names.is_empty()
            && let Some(symbol) = self.loader.find_symbol(address)
        {
            names.push(tidy(&demangle_auto(symbol.into(), None)));
        }
        names
    }
}

/// A name that can stand in a line of folded stacks.
#[inline(never)]
fn tidy(name: &str) -> String {
    let name: String =
        name.chars().map(|c| if c == ';' || c.is_control() { ':' } else { c }).take(NAME).collect();
    name.trim().to_owned()
}

impl Frame {
    /// The allocator's own, or what a language puts in front of it.
    fn is_ours(&self) -> bool {
        const BEFORE: [&str; 8] = [
            "stepalloc::",
            "<stepalloc::",
            "_Unwind_",
            "__rust_",
            "__rustc",
            "alloc::alloc::",
            "<alloc::alloc::",
            "__rdl_",
        ];
        self.image.starts_with("libstepalloc")
            || self.image.starts_with("libgcc_s")
            || BEFORE.iter().any(|before| self.name.starts_with(before))
    }

    fn is_of_interpreter(&self) -> bool {
        self.image.starts_with("python") || self.image.starts_with("libpython")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_this_program_has_its_name() {
        let maps = Maps::read(Path::new("/proc/self/maps"));
        // Without debug information only functions that are not inlined have names.
        let here = std::hint::black_box(tidy as fn(&str) -> String) as usize as u64;
        let mut symbols = Symbols::new(&maps);
        let frames = symbols.frames(here + 2);
        assert!(frames.iter().any(|frame| frame.name.contains("tidy")), "{}", frames[0].name);
        assert_eq!(symbols.folded(&[1], None), "0x0");
        assert_eq!(symbols.folded(&[], Some("train.py:3")), "train.py:3");
    }

    #[test]
    fn lines_of_maps_are_read() {
        let map = Map::parse("7f00-7f10 r-xp 00001000 08:01 123  /usr/lib/a b.so").expect("a file");
        assert_eq!((map.start, map.end, map.offset), (0x7f00, 0x7f10, 0x1000));
        assert_eq!(map.path, Path::new("/usr/lib/a b.so"));
        assert!(Map::parse("7f00-7f10 rw-p 00000000 00:00 0  [heap]").is_none());
    }
}
