"""A checked contract as JUnit XML, which continuous integration shows as a list of tests."""

from __future__ import annotations

from xml.etree import ElementTree

from llmviewer.planning.contract import Check
from llmviewer.reports.contract_page import message
from llmviewer.reports.page import plain


def text(check: Check) -> str:
    """Returns the XML: a test case per line, with a failure that says value, limit and difference."""
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
