//! The table in `docs/testing.md` and the tests that it names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every entry about peers, allocating and subscribers, by section.
const ENTRIES: [(&str, &[u32]); 7] = [
    ("R", &[1, 2, 3, 4, 5, 6, 8, 9, 11, 13, 14, 15, 16, 19, 21, 22]),
    ("P", &[1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13]),
    ("T", &[1, 2, 4, 5, 6, 7]),
    ("E", &[1, 3, 4, 5, 6, 7, 8, 11, 12, 14]),
    ("A", &[1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 14]),
    ("G", &[1, 2, 4, 5, 6, 8, 9, 10, 12]),
    ("S", &[1, 2, 3, 4, 6, 7, 8, 9, 11, 13]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// File (without `tests/` and `.rs`) and name of each test function.
fn tests() -> BTreeSet<(String, String)> {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("tests"), &mut files);
    let mut tests = BTreeSet::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(root()).unwrap().with_extension("");
        let file = file.strip_prefix("tests").unwrap_or(&file).to_str().unwrap();
        let mut marked = false;
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| marked) {
                marked = false;
                tests.extend(rest.split_once('(').map(|(name, _)| (file.to_owned(), name.to_owned())));
            }
        }
    }
    tests
}

/// Entry, and file and name of each test in its row, which are written `file: name, name; file: name`.
fn rows(table: &str) -> Vec<(&str, Vec<(String, String)>)> {
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let (entry, _, tests) = (cells.next()?, cells.next()?, cells.next()?);
        let named = tests.split("; ").filter_map(|of_a_file| of_a_file.split_once(": ")).flat_map(|(file, names)| {
            // What stands between backticks is every second part.
            names.split('`').skip(1).step_by(2).map(|name| (file.to_owned(), name.to_owned()))
        });
        Some((entry, named.collect()))
    });
    rows.collect()
}

/// The entry that a test is named after: `a06_…` is of A6.
fn entry_of(test: &str) -> Option<String> {
    let (head, _) = test.split_once('_')?;
    let letter = head.get(..1)?.to_uppercase();
    let number: u32 = head.get(1..)?.parse().ok()?;
    ENTRIES.iter().any(|(known, _)| *known == letter).then(|| format!("{letter}{number}"))
}

#[test]
fn every_entry_has_its_test() {
    let text = std::fs::read_to_string(root().join("docs/testing.md")).unwrap();
    let (_, table) = text.split_once("## Field faults and their tests").expect("the table has its heading");
    let (rows, tests) = (rows(table), tests());
    for (letter, numbers) in ENTRIES {
        for number in numbers {
            let entry = format!("{letter}{number}");
            let mut named = rows.iter().filter(|(name, _)| *name == entry);
            let (_, names) = named.next().unwrap_or_else(|| panic!("{entry} has no row"));
            assert!(named.next().is_none(), "{entry} has two rows");
            assert!(!names.is_empty(), "{entry} names no test");
            for test in names {
                assert!(tests.contains(test), "{entry} names {test:?}, and there is no such test");
            }
        }
    }
    for test in &tests {
        let Some(entry) = entry_of(&test.1) else { continue };
        let listed = rows.iter().any(|(name, named)| *name == entry && named.contains(test));
        assert!(listed, "{test:?} is named after {entry}, and is not in its row");
    }
}
