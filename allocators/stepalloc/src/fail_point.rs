//! Places where a test can have the engine panic: with the feature `fail-point` only.

/// The place that panics when it is reached next.
#[cfg(feature = "fail-point")]
static PLACE: std::sync::Mutex<Option<&'static str>> = std::sync::Mutex::new(None);

/// Has a place panic when it is reached next: `boundary`, `here` or `beside` (work in the thread of a step, or in one of its own).
#[cfg(feature = "fail-point")]
pub fn set(place: &'static str) {
    *PLACE.lock().expect("nothing panics while it is held") = Some(place);
}

/// The engine is at a place.
#[inline(always)]
pub(crate) fn reach(_place: &str) {
    #[cfg(feature = "fail-point")]
    if PLACE.lock().is_ok_and(|mut place| place.take_if(|place| *place == _place).is_some()) {
        panic!("a test asked for this panic");
    }
}
