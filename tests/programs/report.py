"""Look at a report in a browser as a person would: report.py FILE.html [--screenshots DIR] [--expect-overlap]

Opens the file in headless Chromium, points, turns the wheel, types and prints, and checks what the page then shows against the
data in the file, decoded here anew. Prints one JSON line with the times in milliseconds; the first thing that is wrong ends it
with a message and status 1. Needs Debian's python3-selenium, chromium and chromium-driver (status 77 where they are missing).
"""
import argparse, base64, json, re, statistics, sys
from pathlib import Path

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    print("python3-selenium is missing", file=sys.stderr)
    sys.exit(77)

# What a person waits for without noticing, and what a file may weigh that is mailed around.
READY_MS, FRAME_MS, FILE_BYTES = 3000, 100, 5_000_000
WINDOW = (1400, 1000)


class Wrong(Exception):
    """What the page does not do."""


def check(right, message):
    if not right:
        raise Wrong(message)


# The data, decoded by other code than the page's.


def column(text):
    values, value, number, shift = [], 0, 0, 0
    for byte in base64.b64decode(text):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            value += (number >> 1) ^ -(number & 1)
            values.append(value)
            number = shift = 0
    return values


def data_of(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    check(found, "there is no data in the file")
    return json.loads(found.group(1))


def known_block(plan):
    """The block with the largest picture that no overlap covers."""
    labels = plan["blocks"].get("labels")
    columns = {name: column(text) for name, text in plan["blocks"]["columns"].items() if text}
    for name, values in columns.items():
        check(len(values) == plan["blocks"]["count"], f"column {name} has {len(values)} values, not one for each block")
    covered = {pair[side] for pair in plan["overlaps"]["pairs"] for side in "ab"}
    free = [block for block in range(plan["blocks"]["count"]) if block not in covered]
    check(free, "every block overlaps another: there is none to point at")
    block = max(free, key=lambda block: columns["size"][block] * columns["length"][block])
    facts = {name: values[block] for name, values in columns.items()}
    # A block is called by its label, where there are labels.
    return block, facts | {"id": labels[block] if labels else facts["id"]}


# The browser.


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    size = f"--window-size={WINDOW[0]},{WINDOW[1]}"
    for argument in ["--headless=new", "--no-sandbox", "--no-proxy-server", "--force-device-scale-factor=1", size]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    driver.set_page_load_timeout(60)
    return driver


def scheme(driver, name):
    features = [{"name": "prefers-color-scheme", "value": name}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def settle(driver):
    """Waits until two frames have been drawn."""
    two = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
    driver.execute_async_script(two)


def screenshot(driver, folder, name):
    settle(driver)
    if folder:
        driver.save_screenshot(str(folder / f"{name}.png"))


def asked(driver, call):
    return driver.execute_script(f"return window.stepallocReport.{call}")


def point_at(driver, at):
    """Moves the pointer to a place of the window, by way of another, so that the page hears of it."""
    actions = ActionChains(driver, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(int(at["x"]) + 7, int(at["y"]) + 5)
    actions.w3c_actions.pointer_action.move_to_location(int(round(at["x"])), int(round(at["y"])))
    actions.perform()
    settle(driver)


def to_picture(driver):
    driver.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    driver.execute_script("document.getElementById('plot').scrollIntoView({ block: 'center' })")
    settle(driver)


# What is checked, in the order of a visit.


def opens(driver, path, data, times):
    scheme(driver, "light")
    driver.get(path.as_uri())
    try:
        WebDriverWait(driver, 30, 0.02).until(lambda driver: driver.execute_script("return !!(window.stepallocReport || {}).ready"))
    except TimeoutException:
        said = driver.execute_script("return (document.getElementById('trouble') || document.body).textContent.slice(0, 200)")
        raise Wrong(f"the page is not ready after 30 s; it says: {said!r}") from None
    times["opened_ms"] = round(asked(driver, "openedMs"), 1)
    check(times["opened_ms"] < READY_MS, f"the page was ready after {times['opened_ms']} ms, not within {READY_MS}")
    settle(driver)
    check(driver.title == data["title"], f"the title is {driver.title!r}, not {data['title']!r}")
    heading = driver.find_element(By.TAG_NAME, "h1").text
    check(heading == " ".join(data["title"].split()), f"the heading is {heading!r}, not {data['title']!r}")
    trouble = driver.find_element(By.ID, "trouble")
    check(not trouble.is_displayed(), f"the page says: {trouble.text!r}")
    for text in data.get("notices") or []:
        check(text in driver.find_element(By.ID, "notices").text, f"the notice {text!r} is not shown")
    for term, value in data.get("facts") or []:
        check(value in driver.find_element(By.ID, "facts").text, f"the fact {term} {value} is not shown")


def sections(driver, data):
    """Every section that has data is there, and no other."""
    plans = data.get("plans") or []
    expected = {
        "plan": bool(plans),
        "peak": any(plan.get("peak") for plan in plans[:1]),
        "course": bool(data.get("course")),
        "steps": bool(data.get("steps")),
        "fallbacks": bool(data.get("fallbacks")),
        "comparison": bool(data.get("comparison")),
        "what-if": bool(data.get("what_if") and (data["what_if"].get("rows") or data["what_if"].get("predictions"))),
        "overlaps": any(plan["overlaps"]["total"] for plan in plans),
    }
    for section, wanted in expected.items():
        shown = driver.find_element(By.ID, section).is_displayed()
        check(shown == wanted, f"section {section} is {'shown' if shown else 'missing'}")
    for row in (data.get("comparison") or {}).get("rows", []):
        shown = driver.find_element(By.ID, "comparison-table").text
        check(row["allocator"] in shown, f"{row['allocator']} is not in the comparison")


def hover(driver, data):
    block, facts = known_block(data["plans"][0])
    to_picture(driver)
    place = asked(driver, f"place({block})")
    check(place, f"block {facts['id']} has no place in the picture")
    point_at(driver, place)
    tip = driver.find_element(By.ID, "tip")
    check(tip.is_displayed(), f"no tooltip over the middle of block {facts['id']}")
    text = tip.text
    check(f"Block {facts['id']}" in text, f"the tooltip over the middle of block {facts['id']} says {text!r}")
    size = facts["size"]
    written = f"{size:,} bytes" if size != 1 else "1 byte"
    check(written in text, f"the tooltip does not say {written}: {text!r}")
    ActionChains(driver).click().perform()
    settle(driver)
    details = driver.find_element(By.ID, "details").text
    check(f"Block {facts['id']}" in details, f"a click does not keep block {facts['id']}: {details!r}")
    return block, facts


def wheel(driver, data, times):
    """Zooms by the wheel, and measures from the event to the frame after it."""
    driver.execute_script(
        """window.frames_ms = [];
        document.getElementById('marks').addEventListener('wheel', (event) => {
          const at = performance.now();
          requestAnimationFrame(() => { const c = new MessageChannel();
            c.port1.onmessage = () => window.frames_ms.push([performance.now() - at, window.stepallocReport.lastDrawMs]);
            c.port2.postMessage(0); });
        });"""
    )
    canvas = driver.find_element(By.ID, "marks")
    before = asked(driver, "view()")
    origin = ScrollOrigin.from_element(canvas, 60, -40)
    for turn in [-240] * 6 + [240] * 2:
        ActionChains(driver).scroll_from_origin(origin, 0, turn).perform()
        settle(driver)
    after = asked(driver, "view()")
    narrower = after["x1"] - after["x0"] < before["x1"] - before["x0"] and after["y1"] - after["y0"] < before["y1"] - before["y0"]
    # What has one event or a few bytes cannot be zoomed.
    check(narrower or data["plans"][0]["events"] <= 2, f"the wheel does not zoom: {before} became {after}")
    frames = driver.execute_script("return window.frames_ms")
    check(frames, "the picture hears of no wheel")
    for name, values in [("frame_ms", [frame for frame, _ in frames]), ("redraw_ms", [draw for _, draw in frames])]:
        times[name] = {"median": round(statistics.median(values), 1), "most": round(max(values), 1)}
        # The middle one: a single frame may be late because of other programs.
        check(times[name]["median"] < FRAME_MS, f"{name} of a zoom by the wheel is {times[name]}, not below {FRAME_MS}")


def keys(driver, data):
    canvas = driver.find_element(By.ID, "marks")
    check(canvas.get_attribute("aria-label"), "the picture has no aria-label")
    driver.execute_script("document.getElementById('marks').focus({ preventScroll: true })")
    press = lambda key: (ActionChains(driver).send_keys(key).perform(), settle(driver))
    press("0")
    check(asked(driver, "showsAll()"), "key 0 does not show the whole plan")
    press(Keys.ESCAPE)
    heard = []
    for key in "nn" if data["plans"][0]["blocks"]["count"] > 1 else "n":
        press(key)
        heard.append(driver.find_element(By.ID, "announce").get_attribute("textContent"))
    check(all(text.startswith("Block ") for text in heard), f"key n announces no block: {heard}")
    check(len(set(heard)) == len(heard), f"key n stays on one block: {heard}")
    if len(heard) == 2:
        press("p")
        back = driver.find_element(By.ID, "announce").get_attribute("textContent")
        check(back == heard[0], f"key p does not go back: {back!r}, not {heard[0]!r}")
    before = asked(driver, "view()")
    press("+")
    zoomed = asked(driver, "view()")
    check(zoomed != before, "key + does not zoom")
    press(Keys.ARROW_LEFT), press(Keys.ARROW_UP)
    check(asked(driver, "view()") != zoomed or data["plans"][0]["events"] <= 2, "the arrow keys do not move")
    ActionChains(driver).double_click(canvas).perform()
    settle(driver)
    check(asked(driver, "showsAll()"), "a double click does not show the whole plan")
    press(Keys.ESCAPE)


def search(driver, data, block, facts):
    box = driver.find_element(By.ID, "search-id")
    box.clear()
    box.send_keys(str(facts["id"]), Keys.ENTER)
    settle(driver)
    # Labels may be the same for several blocks.
    labels = data["plans"][0]["blocks"].get("labels")
    check(labels or asked(driver, "chosen()") == block, f"the search does not find block {facts['id']}")
    check(f"Block {facts['id']}" in driver.find_element(By.ID, "details").text, "what was found is not shown")
    box.clear()
    box.send_keys("no such block", Keys.ENTER)
    check(box.get_attribute("aria-invalid") == "true", "a search for what is not there is not refused")
    driver.find_element(By.ID, "zoom-reset").click()
    settle(driver)
    check(asked(driver, "showsAll()"), "the button does not show the whole plan")


def overlap(driver, data, expected):
    pairs = [(plan, pair) for plan in data.get("plans") or [] for pair in plan["overlaps"]["pairs"]]
    if not expected:
        return check(not pairs, f"there are {len(pairs)} overlaps, and none was expected")
    check(pairs, "an overlap was expected, and the data has none")
    plan, pair = pairs[0]
    ids = plan["blocks"].get("labels") or column(plan["blocks"]["columns"]["id"])
    shared = f"bytes {pair['from_byte']} to {pair['to_byte']} from event {pair['from_event']} to {pair['to_event']}"
    text = f"Blocks {ids[pair['a']]} and {ids[pair['b']]} share {shared}"
    listed = [button for button in driver.find_elements(By.CSS_SELECTOR, "#overlap-list button") if text in button.text]
    check(listed, f"the overlap is not listed: {text}")
    hatched = hatched_pixels(driver)
    check(hatched > 0, "the overlap is not drawn in the whole picture")
    listed[0].click()
    settle(driver)
    view = asked(driver, "view()")
    inside = view["x0"] <= pair["from_event"] and view["y0"] <= pair["from_byte"] and view["y1"] >= pair["to_byte"]
    check(inside and not asked(driver, "showsAll()"), f"the button does not zoom to the overlap: the view is {view}")
    near = hatched_pixels(driver)
    check(near > hatched, f"the overlap is no larger where it is zoomed to: {near} pixels after {hatched}")
    return None


# The picture's pixels, read from a copy: reading the canvas itself would change how the browser keeps it.
PIXELS = """const canvas = document.getElementById('picture');
const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
copy.drawImage(canvas, 0, 0);
"""


def hatched_pixels(driver):
    """Pixels of the overlaps' colour in the picture."""
    return driver.execute_script(
        PIXELS
        + """const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let at = 0; at < data.length; at += 4) if (data[at] === 0xd4 && data[at + 1] === 0 && data[at + 2] === 0x3c) count++;
        return count;"""
    )


def brightness(driver):
    """Of the page's ground and, where there is a plan, of the picture's corner: 0 to 255."""
    return driver.execute_script(
        """const middle = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number); return (r + g + b) / 3; };
        const page = middle(getComputedStyle(document.body).backgroundColor);
        if (document.getElementById('plan').hidden) return [page];
        """
        + PIXELS
        + """const { data } = copy.getImageData(canvas.width - 6, 8, 1, 1);
        return [page, (data[0] + data[1] + data[2]) / 3];"""
    )


def themes(driver, folder):
    driver.execute_script("window.scrollTo(0, 0)")
    for name, right in [("light", lambda value: value > 200), ("dark", lambda value: value < 80)]:
        scheme(driver, name)
        settle(driver)
        measured = brightness(driver)
        check(all(map(right, measured)), f"the {name} page is not {name}: ground and picture have brightness {measured}")
        screenshot(driver, folder, name)
    driver.find_element(By.ID, "theme").click()
    settle(driver)
    check(brightness(driver)[0] > 200, "the button does not change the theme")
    driver.find_element(By.ID, "theme").click()


def prints(driver, folder):
    """Printed from the dark theme, which paper does not have."""
    pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    check(pdf.startswith(b"%PDF") and len(pdf) > 10_000, f"the printed page is no PDF or empty: {len(pdf)} bytes")
    if folder:
        (folder / "print.pdf").write_bytes(pdf)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = [name for name in ["theme", "contents", "search"] if driver.find_element(By.ID, name).is_displayed()]
    check(not shown, f"controls are printed: {', '.join(shown)}")
    fits = driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    check(fits, "the printed page is wider than the paper")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def narrow(driver, folder):
    metrics = {"width": 360, "height": 780, "deviceScaleFactor": 2, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme(driver, "light")
    settle(driver)
    width = driver.execute_script("return document.documentElement.scrollWidth")
    check(width <= 360, f"at 360 pixels the page is {width} wide")
    screenshot(driver, folder, "narrow")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def quiet(driver, path):
    """Nothing was asked of the network, and nothing went wrong unseen."""
    names = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    foreign = [name for name in names if not name.startswith("data:")]
    check(not foreign, f"the page asked for {foreign}")
    # Without the data, in which names may hold anything.
    text = re.sub(r'id="data">.*?</script>', "", path.read_text(), flags=re.DOTALL)
    fetched = re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//[^"'\s>]+""", text)
    check(not fetched, f"the page names other places to fetch from: {fetched[:3]}")
    said = [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    check(not said, f"the console says: {said}")


def visit(driver, path, data, folder, expect_overlap):
    times = {"bytes": path.stat().st_size, "blocks": sum(plan["blocks"]["count"] for plan in data.get("plans") or [])}
    check(times["bytes"] < FILE_BYTES, f"the file has {times['bytes']} bytes, not below {FILE_BYTES}")
    opens(driver, path, data, times)
    sections(driver, data)
    if data.get("plans") and data["plans"][0]["blocks"]["count"]:
        block, facts = hover(driver, data)
        screenshot(driver, folder, "hover")
        wheel(driver, data, times)
        screenshot(driver, folder, "zoomed")
        keys(driver, data)
        search(driver, data, block, facts)
    overlap(driver, data, expect_overlap)
    if expect_overlap:
        screenshot(driver, folder, "overlap")
    themes(driver, folder)
    prints(driver, folder)
    narrow(driver, folder)
    quiet(driver, path)
    return times


def main():
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("file", type=Path)
    words.add_argument("--screenshots", type=Path, metavar="DIR")
    words.add_argument("--expect-overlap", action="store_true")
    arguments = words.parse_args()
    path = arguments.file.resolve()
    if arguments.screenshots:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    driver = browser()
    try:
        data = data_of(path.read_text())
        print(json.dumps(visit(driver, path, data, arguments.screenshots, arguments.expect_overlap)))
    except Wrong as wrong:
        sys.exit(f"{arguments.file}: {wrong}")
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
