//! The directory in all the ways in which files come, change and go.

use std::os::unix::fs::symlink;

use super::*;

/// A file whose contents are told apart by a number.
pub(in super::super) fn file(fingerprint: u64) -> Arc<PeerFile> {
    let failure = Failure { reason: "test", message: String::new(), hint: String::new() };
    Arc::new(PeerFile { config: Err(failure), fingerprint })
}

const YAML: &str = "endpoints:\n- https://127.0.0.1:2379\ntrusted-ca-file: ca.crt\n";

fn ours() -> ClusterName {
    ClusterName::new("ours").unwrap()
}

fn names(picture: &Picture) -> Vec<&str> {
    picture.peers.keys().map(ClusterName::as_str).collect()
}

/// Puts files where the kubelet would: in a folder of their own, with `..data` swapped to it at once.
fn mount(directory: &Path, generation: u32, files: &[(&str, &str)]) {
    let folder = format!("..2026_{generation}");
    fs::create_dir(directory.join(&folder)).unwrap();
    for (name, contents) in files {
        fs::write(directory.join(&folder).join(name), contents).unwrap();
        let link = directory.join(name);
        if !link.is_symlink() {
            symlink(format!("..data/{name}"), link).unwrap();
        }
    }
    let next = directory.join("..data_tmp");
    symlink(folder, &next).unwrap();
    fs::rename(next, directory.join("..data")).unwrap();
}

#[test]
fn p01_only_files_with_endpoints_are_peers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let files = [("blue", YAML), ("red", YAML), ("ours", YAML), ("ca.crt", "PEM"), ("readme", "see elsewhere")];
    mount(path, 1, &files);
    fs::create_dir(path.join("folder")).unwrap();
    fs::write(path.join(".hidden"), YAML).unwrap();
    symlink("nowhere", path.join("dangling")).unwrap();
    let picture = look(path, Some(&ours())).unwrap();
    assert_eq!(names(&picture), ["blue", "red"]);
    assert!(picture.misnamed.is_empty());
    assert!(picture.peers.values().all(|file| file.config.is_ok()));
}

#[test]
fn p07_a_bad_name_harms_itself_only() {
    let directory = tempfile::tempdir().unwrap();
    let (longest, too_long) = ("a".repeat(32), "a".repeat(33));
    let bad = ["Upper", "under_score", "dot.yaml", "-leading", "trailing-", too_long.as_str()];
    for name in bad.iter().copied().chain([longest.as_str()]) {
        fs::write(directory.path().join(name), YAML).unwrap();
    }
    let picture = look(directory.path(), Some(&ours())).unwrap();
    assert_eq!(names(&picture), [longest.as_str()]);
    let mut reported: Vec<_> = picture.misnamed.keys().map(String::as_str).collect();
    reported.sort_unstable_by_key(|name| bad.iter().position(|bad| bad == name));
    assert_eq!(reported, bad);
}

#[test]
fn p02_only_contents_count_and_certificates_are_contents() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    mount(path, 1, &[("blue", YAML), ("ca.crt", "one")]);
    let first = look(path, Some(&ours())).unwrap();
    mount(path, 2, &[("blue", YAML), ("ca.crt", "one")]);
    let second = look(path, Some(&ours())).unwrap();
    assert!(difference(&first, &second).is_empty(), "the same bytes by way of another folder");
    mount(path, 3, &[("blue", YAML), ("ca.crt", "two")]);
    let third = look(path, Some(&ours())).unwrap();
    assert!(matches!(&difference(&second, &third)[..], [Change::Present(name, _)] if name.as_str() == "blue"));
}

#[test]
fn a_broken_file_is_a_peer_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("blue"), "endpoints: [").unwrap();
    let picture = look(directory.path(), Some(&ours())).unwrap();
    let file = picture.peers.values().next().unwrap();
    assert_eq!(file.config.as_ref().unwrap_err().reason, "file-malformed");
}

#[test]
fn differences_are_what_must_be_done() {
    let name = |name: &str| ClusterName::new(name).unwrap();
    let picture = |peers: &[(&str, u64)]| Picture {
        peers: peers.iter().map(|&(peer, contents)| (name(peer), file(contents))).collect(),
        misnamed: BTreeMap::new(),
    };
    let changes = difference(&picture(&[("a", 1), ("b", 1), ("c", 1)]), &picture(&[("b", 2), ("c", 1), ("d", 1)]));
    let expected =
        [Change::Removed(name("a")), Change::Present(name("b"), file(2)), Change::Present(name("d"), file(1))];
    assert_eq!(changes, expected);
}

#[tokio::test]
async fn p03_every_swap_and_every_way_of_writing_is_seen() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("peers");
    let write = |endpoint: &str| format!("endpoints: ['https://{endpoint}:2379']\n");
    let fresh = |generation: u32, endpoint: &str| mount(&path, generation, &[("blue", &write(endpoint))]);
    fs::create_dir(&path).unwrap();
    let mut directory = Directory::new(path.clone(), ours(), Duration::from_millis(5));
    assert!(directory.changes().await.is_empty(), "the first look tells even that there is nothing");
    // On a busy machine the directory may come to rest between two writes; the last one counts.
    let mut endpoint = async |expected: &str| {
        let url = format!("https://{expected}:2379");
        loop {
            let changes = tokio::time::timeout(Duration::from_secs(10), directory.changes()).await.expect(expected);
            if let [Change::Present(_, file)] = &changes[..]
                && file.config.as_ref().unwrap().endpoints == [url.as_str()]
            {
                return;
            }
        }
    };
    fresh(1, "a");
    endpoint("a").await;
    fresh(2, "b");
    endpoint("b").await;
    // Several in a row are one change, to the last.
    for (generation, name) in [(3, "c"), (4, "d"), (5, "e")] {
        fresh(generation, name);
    }
    endpoint("e").await;
    // In place, through the links.
    fs::write(path.join("blue"), write("f")).unwrap();
    endpoint("f").await;
    // As editors do.
    fs::write(path.join(".blue.swp"), write("g")).unwrap();
    fs::rename(path.join(".blue.swp"), path.join("blue")).unwrap();
    endpoint("g").await;
    // A directory that goes says nothing about its peers, one that comes back does.
    fs::remove_dir_all(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("blue"), write("h")).unwrap();
    endpoint("h").await;
    fs::remove_file(path.join("blue")).unwrap();
    let changes = tokio::time::timeout(Duration::from_secs(10), directory.changes()).await.unwrap();
    assert_eq!(changes, [Change::Removed(ClusterName::new("blue").unwrap())]);
}
