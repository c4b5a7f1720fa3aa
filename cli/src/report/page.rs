//! The page: one file of HTML with its style, script and data inside, which asks for nothing from any network.

use serde_json::Value;

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// What is used comes before what uses it.
const SCRIPT: &str = concat!(
    include_str!("page/numbers.js"),
    include_str!("page/elements.js"),
    include_str!("page/colours.js"),
    include_str!("page/plan.js"),
    include_str!("page/raster.js"),
    include_str!("page/picture.js"),
    include_str!("page/gestures.js"),
    include_str!("page/charts.js"),
    include_str!("page/tables.js"),
    include_str!("page/page.js"),
);

/// The whole file.
pub fn page(report: &Value) -> String {
    let title = escaped(report["title"].as_str().unwrap_or("stepalloc"));
    let data = report.to_string().replace('<', "\\u003c");
    // Each part of the page by itself, so that what is put into one is not looked at again.
    let parts = PAGE.split_inclusive("*/").flat_map(|part| part.split_inclusive("-->"));
    let filled = parts.map(|part| {
        [
            ("/*STYLE*/", STYLE),
            ("/*CODE*/", SCRIPT),
            ("/*DATA*/", data.as_str()),
            ("<!--TITLE-->", title.as_str()),
        ]
        .into_iter()
        .find_map(|(place, text)| Some(format!("{}{text}", part.strip_suffix(place)?)))
        .unwrap_or_else(|| part.to_owned())
    });
    filled.collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_page_is_whole_and_its_data_cannot_leave_their_place() {
        let report = json!({"version": 1, "title": "a <b> & /*CODE*/", "notices": ["</script><!--"]});
        let page = page(&report);
        assert!(page.contains("<title>a &lt;b&gt; &amp; /*CODE*/</title>"));
        assert!(!page.contains("</script><!--") && page.contains("\\u003c/script>\\u003c!--"));
        assert_eq!(page.matches("/*DATA*/").count() + page.matches("/*STYLE*/").count(), 0);
        for remote in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(remote), "{remote}");
        }
    }
}
