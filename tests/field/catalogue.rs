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

/// The names of all test functions.
fn tests() -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    sources(&root().join("tests"), &mut files);
    let mut tests = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let mut marked = false;
        for line in text.lines().map(str::trim_start) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| marked) {
                marked = false;
                tests.extend(rest.split_once('(').map(|(name, _)| name.to_owned()));
            }
        }
    }
    tests
}

/// Entry and the tests that its row names.
fn rows(table: &str) -> Vec<(&str, Vec<&str>)> {
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (entry, _, tests) = (cells.next()?, cells.next()?, cells.next()?);
        // What stands between backticks is every second part.
        Some((entry, tests.split('`').skip(1).step_by(2).collect()))
    });
    rows.collect()
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
            for name in names {
                assert!(tests.contains(*name), "{entry} names `{name}`, and there is no such test");
            }
        }
    }
}
