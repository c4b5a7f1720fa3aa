//! The memory that a plan's offsets point into.

use crate::error::Error;
use memmap2::MmapMut;

/// A range of addresses from the system: pages come when they are first written, and go back when it is dropped.
pub(crate) struct Arena {
    map: Option<MmapMut>,
    bytes: usize,
}

impl Arena {
    /// So many bytes, all zero.
    pub(crate) fn new(bytes: usize) -> Result<Self, Error> {
        let map = (bytes > 0).then(|| MmapMut::map_anon(bytes)).transpose();
        let map = map.map_err(|source| Error::Memory { bytes: bytes as u64, why: source.to_string() })?;
        Ok(Self { map, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn memory(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }
}
