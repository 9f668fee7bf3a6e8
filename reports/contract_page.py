"""A checked contract as a page, with by how much each line breaks, and as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree

from llmviewer.planning.contract import Check, Checked
from llmviewer.planning.contract_line import ROOM
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, plain, right


def page(check: Check) -> Page:
    """Returns the verdict on a contract, the table of its lines, and a sentence on each that breaks."""
    rows = tuple(
        Row(
            cells=(str(line.number), "holds" if line.holds else "breaks", amount(line, line.value), _text(line)),
            emphasis=Emphasis.PLAIN if line.holds else Emphasis.WARNING,
        )
        for line in check.lines
    )
    columns = (right("Line"), left("Verdict"), right("Value"), left("Contract", wraps=True))
    first = (Facts(lines=(("Contract", verdict(check)),)), Table(columns=columns, rows=rows))
    broken = tuple((f"Line {line.number}", f"{_text(line)}: {message(line)}") for line in check.broken)
    return (*first, Facts(lines=broken, title="Lines that break", emphasis=Emphasis.WARNING)) if broken else first


def _text(line: Checked) -> str:
    return plain(f"{line.configuration}: {line.condition.text}")


def verdict(check: Check) -> str:
    """Returns how many lines of a contract hold or break."""
    count = f"{len(check.lines)} line{'s' if len(check.lines) > 1 else ''}"
    return f"all of {count} hold" if check.holds else f"{len(check.broken)} of {count} break"


def amount(line: Checked, value: float | None) -> str:
    """Returns a value in the unit of its line."""
    return fmt.DASH if value is None else f"{fmt.digits(value / line.unit.factor, 4)} {line.unit.name}".rstrip()


def message(line: Checked) -> str:
    """Returns value, limit and difference of a broken line in a sentence, and why else it breaks."""
    if line.difference is None:
        return plain(line.reason)
    if line.condition.metric == ROOM and not line.condition.limit:
        return f"memory {amount(line, abs(line.difference))} {'short' if line.difference < 0 else 'left'}"
    told = f"value {amount(line, line.value)}, limit {amount(line, line.condition.limit)}"
    if not line.condition.holds(line.value or 0.0):
        side = "above" if line.difference > 0 else "below"
        told += f": {amount(line, abs(line.difference))} {side}" if line.difference else ": equal"
        told += (
            f" ({fmt.signed(line.difference / abs(line.condition.limit))})"
            if line.condition.limit and line.difference
            else ""
        )
    return f"{line.reason}; {told}" if line.reason else told


def junit(check: Check) -> str:
    """Returns JUnit XML, which continuous integration shows as tests: a case per line, with what breaks it."""
    counts = {"tests": str(len(check.lines)), "failures": str(len(check.broken)), "errors": "0"}
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": plain(f"llmviewer check {check.source}"), **counts})
    for line in check.lines:
        names = {"classname": plain(line.configuration), "name": plain(line.condition.text), "line": str(line.number)}
        case = ElementTree.SubElement(suite, "testcase", names)
        if not line.holds:
            ElementTree.SubElement(case, "failure", {"type": "broken", "message": message(line)})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)
