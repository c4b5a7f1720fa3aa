//! Chrome's trace events as JSON: steps as slices, live bytes as a counter over them.
//!
//! The format is the "Trace Event Format" of the Chromium project (JSON object form), as Perfetto reads it
//! (src/trace_processor/importers/json): complete events `X` with `ts` and `dur`, counters `C` whose `args` are the series,
//! names by metadata `M`. Times are microseconds with three decimals, from the first step's beginning on. A trace knows when
//! its steps begin; events are spread evenly over their step, and the last step takes as long as the one before.

use std::io::{self, Write};

use serde_json::json;
use stepalloc_planner::Trace;

use super::Recorded;
use crate::report::walk::{Change, Walk};

/// When a step begins, and how long it takes, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    begin: u64,
    length: u64,
}

impl Span {
    /// The time of an event of so many.
    fn at(self, event: usize, of: usize) -> u64 {
        let part = u128::from(self.length) * (event as u128 + 1) / (of as u128 + 1);
        // Less than the length.
        self.begin.saturating_add(part as u64)
    }
}

/// The steps' times; what goes backwards on the recorder's clock stands still.
fn spans(trace: &Trace) -> Vec<Span> {
    let first = trace.steps.first().map_or(0, |step| step.micros);
    let mut begins = Vec::with_capacity(trace.steps.len());
    let mut now = 0;
    for step in &trace.steps {
        now = now.max(step.micros.saturating_sub(first).saturating_mul(1000));
        begins.push(now);
    }
    let last = match begins.as_slice() {
        [.., before, last] => last - before,
        // A lone step: a microsecond an event.
        _ => trace.steps.iter().map(|step| 1000 * step.events.len() as u64).sum(),
    };
    let lengths = begins.windows(2).map(|pair| pair[1] - pair[0]).chain([last]);
    begins.iter().zip(lengths).map(|(&begin, length)| Span { begin, length }).collect()
}

/// Nanoseconds as microseconds.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// Writes a trace as Chrome's trace events. Blocks of at least `min_bytes` bytes are counted as of planned size.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, recorded: &Recorded, min_bytes: u64) -> io::Result<()> {
    let trace = recorded.trace;
    writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let name = |of: &str, tid: &str, name: &str| {
        format!("{{\"ph\":\"M\",\"name\":\"{of}\",\"pid\":1{tid},\"args\":{{\"name\":{}}}}}", json!(name))
    };
    writeln!(out, "{},", name("process_name", "", &trace.name))?;
    write!(out, "{}", name("thread_name", ",\"tid\":1", "steps"))?;

    let spans = spans(trace);
    for (index, (step, span)) in trace.steps.iter().zip(&spans).enumerate() {
        write!(
            out,
            ",\n{{\"ph\":\"X\",\"name\":\"step {index}\",\"cat\":\"step\",\"pid\":1,\"tid\":1,\"ts\":{},\"dur\":{},\
             \"args\":{{\"events\":{}}}}}",
            micros(span.begin),
            micros(span.length),
            step.events.len()
        )?;
    }
    let mut counter = |name: &str, series: &str, at: u64, value: u64| {
        write!(
            out,
            ",\n{{\"ph\":\"C\",\"name\":\"{name}\",\"pid\":1,\"tid\":1,\"ts\":{},\"args\":{{\"{series}\":{value}}}}}",
            micros(at)
        )
    };
    counter("live bytes", "bytes", 0, 0)?;
    counter("planned size blocks", "blocks", 0, 0)?;
    let (mut live, mut blocks, mut sizes) = (0u64, 0u64, Vec::new());
    let mut latest = 0;
    for moment in Walk::whole(trace) {
        let (size, born) = match moment.change {
            Change::Born { size, .. } => {
                sizes.push(size);
                (size, true)
            }
            Change::Died { block } => (sizes[block], false),
        };
        live = if born { live.saturating_add(size) } else { live.saturating_sub(size) };
        // A reallocation's old block dies after the new one is born, at an event before it.
        latest = spans[moment.step].at(moment.event, trace.steps[moment.step].events.len()).max(latest);
        counter("live bytes", "bytes", latest, live)?;
        if size >= min_bytes {
            blocks = if born { blocks + 1 } else { blocks - 1 };
            counter("planned size blocks", "blocks", latest, blocks)?;
        }
    }
    let end = spans.last().map_or(0, |span| span.begin.saturating_add(span.length));
    counter("live bytes", "bytes", end.max(latest), live)?;
    writeln!(out, "\n]}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::export::tests::example;
    use serde_json::Value;

    fn written(trace: &Trace, min_bytes: u64) -> Vec<Value> {
        let mut text = Vec::new();
        write(&mut text, &Recorded::bare(trace), min_bytes).unwrap();
        let json: Value = serde_json::from_slice(&text).unwrap();
        json["traceEvents"].as_array().unwrap().clone()
    }

    /// Times and values of a counter.
    fn counter(events: &[Value], name: &str, series: &str) -> Vec<(f64, u64)> {
        let of_name = events.iter().filter(|event| event["ph"] == "C" && event["name"] == name);
        of_name
            .map(|event| (event["ts"].as_f64().unwrap(), event["args"][series].as_u64().unwrap()))
            .collect()
    }

    #[test]
    fn steps_are_slices_one_behind_the_other() {
        let events = written(&example(), 0);
        let slices: Vec<(&Value, f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| (&event["name"], event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap()))
            .collect();
        assert_eq!(slices, [(&json!("step 0"), 0.0, 1000.0), (&json!("step 1"), 1000.0, 1000.0)]);
    }

    #[test]
    fn counters_follow_the_events_in_time() {
        const MIB: u64 = 1 << 20;
        let events = written(&example(), 5000);
        let live = counter(&events, "live bytes", "bytes");
        let bytes: Vec<u64> = live.iter().map(|point| point.1).collect();
        let expected = [0, MIB, MIB + 5000, MIB + 10_000, MIB + 5000, 5000, 10_000, 10_064, 5064, 5064];
        assert_eq!(bytes, expected);
        assert!(live.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{live:?}");
        // The fourth of five events, and the first of four.
        assert_eq!((live[3].0, live[5].0), (666.666, 1200.0));
        let blocks = counter(&events, "planned size blocks", "blocks");
        assert_eq!(blocks.iter().map(|point| point.1).collect::<Vec<_>>(), [0, 1, 2, 3, 2, 1, 2, 1]);
    }

    #[test]
    fn process_and_thread_have_names() {
        let mut example = example();
        example.name = "a \"name\"\n".to_owned();
        let names: Vec<Value> = written(&example, 0).into_iter().filter(|event| event["ph"] == "M").collect();
        assert_eq!(names.len(), 2);
        assert_eq!(
            (&names[0]["name"], &names[0]["args"]["name"]),
            (&json!("process_name"), &json!("a \"name\"\n"))
        );
    }

    #[test]
    fn clocks_that_go_backwards_or_far_stand_still() {
        let mut odd = example();
        odd.steps[0].micros = 9000;
        assert_eq!(spans(&odd), [Span { begin: 0, length: 0 }, Span { begin: 0, length: 0 }]);
        odd.steps[1].micros = u64::MAX;
        assert_eq!(spans(&odd)[1].begin, u64::MAX);
        assert!(written(&odd, 0).len() > 10);
        odd.steps.truncate(1);
        assert_eq!(spans(&odd), [Span { begin: 0, length: 5000 }]);
        assert!(written(&Trace::default(), 0).len() > 2);
    }

    #[test]
    fn a_reallocation_does_not_go_back_in_time() {
        use crate::report::walk::tests::{allocate, free, trace};
        use stepalloc_planner::Event;
        let moved = Event::Allocate { block: 1, size: 200, align: 16, moved_from: Some(1) };
        let events = written(&trace(vec![vec![allocate(1, 100), free(1), moved]]), 0);
        let live = counter(&events, "live bytes", "bytes");
        assert_eq!(live.iter().map(|point| point.1).collect::<Vec<_>>(), [0, 100, 300, 200, 200]);
        assert!(live.windows(2).all(|pair| pair[0].0 <= pair[1].0), "{live:?}");
    }
}
