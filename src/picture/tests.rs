use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use twox_hash::XxHash3_64;

use super::*;
use crate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use crate::view::{ClusterBuilder, ClusterView, Interner, SourcePosition};

const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

fn fit() -> Fit {
    Fit { name: ClusterName::new("blue").unwrap(), width: WIDTH, max_key_string: 4_096 }
}

/// Offset → (key string, revision).
type Contents = BTreeMap<u16, (String, i64)>;

fn picture(contents: &Contents) -> Picture {
    let id = ClusterId::new(7, WIDTH).unwrap();
    let range = IdentityRange::of(id, WIDTH);
    let mut builder = ClusterBuilder::new(Interner::new(), fit().name, id, range);
    for (offset, (key_string, revision)) in contents {
        builder.upsert(NumericIdentity::new(range.min() + u32::from(*offset)), key_string, *revision).unwrap();
    }
    let position = SourcePosition { etcd_cluster_id: u64::MAX, revision: 1_000 };
    builder.set_synced(position);
    let saved_at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_790_000_000_123);
    Picture { version: builder.build(), position, prefix: "a/b/".into(), saved_at, unavailable_since: None }
}

fn small() -> Picture {
    let entry = |key: &str, revision| (key.to_owned(), revision);
    picture(&[(0, entry("k8s:a=1;k8s:b=2;", 3)), (9, entry("k8s:b=2;", 1_001)), (255, entry("k8s:ü=;", 0))].into())
}

fn shown(version: &ClusterView) -> Vec<(u32, String, i64)> {
    version.iter().map(|entry| (entry.number().get(), entry.key_string(), entry.revision())).collect()
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 8;
    let checksum = XxHash3_64::oneshot(&bytes[..body]);
    bytes[body..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn contents() -> impl Strategy<Value = Contents> {
    let label = prop_oneof![
        ("[a-z]{1,6}", "[a-z0-9.:/é-]{1,12}", "[ -:<-~ü]{0,12}")
            .prop_map(|(source, key, value)| format!("{source}:{key}={value};")),
        // What does not read the same again.
        "[:=$;a]{1,6}".prop_map(|text| format!("{text};")),
        Just("reserved:==x;".to_owned()),
        Just("k8s:common=1;".to_owned()),
    ];
    let key_string = prop::collection::vec(label, 1..6).prop_map(|labels| labels.concat());
    let revision = prop_oneof![0..1_000i64, any::<i64>()];
    prop::collection::btree_map(any::<u16>(), (key_string, revision), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_picture_comes_back_as_it_was(contents in contents(), unavailable in prop::option::of(1..u64::MAX / 2_000_000)) {
        let since = unavailable.map(|millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis));
        let kept = Picture { unavailable_since: since, ..picture(&contents) };
        let interner = Interner::new();
        let back = decode(&encode(&kept, WIDTH), &fit(), &interner).unwrap();
        prop_assert_eq!(shown(&back.version), shown(&kept.version));
        prop_assert_eq!(back.version.checksum(), kept.version.checksum());
        prop_assert_eq!(back.version.len(), kept.version.len());
        prop_assert!(back.version.is_stale() && back.version.is_synced());
        prop_assert_eq!(back.version.position(), Some(kept.position));
        prop_assert_eq!((back.position, back.prefix, back.saved_at), (kept.position, kept.prefix, kept.saved_at));
        prop_assert_eq!(back.unavailable_since, since);
        for entry in kept.version.iter() {
            // With the parts of each label where they were: look-ups by labels find it.
            let found = back.version.get(entry.number()).unwrap();
            prop_assert!(found.labels().iter().zip(entry.labels()).all(|(back, kept)| back.parts() == kept.parts()));
            prop_assert!(back.version.lookup(&entry.key_string()).is_some());
        }
    }

    #[test]
    fn whatever_the_bytes_say_it_is_an_error_or_a_picture(
        at in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..12)
    ) {
        let mut file = encode(&small(), WIDTH);
        let at = 12 + at.index(file.len() - 12);
        let end = (at + bytes.len()).min(file.len());
        file[at..end].copy_from_slice(&bytes[..end - at]);
        // With a checksum that agrees, so that the rest is read.
        let _ = decode(&resealed(file), &fit(), &Interner::new());
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_detected() {
    let file = encode(&small(), WIDTH);
    for at in 0..file.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = file.clone();
            changed[at] ^= flip;
            assert!(decode(&changed, &fit(), &Interner::new()).is_err(), "byte {at} ^ {flip}");
        }
        assert!(decode(&file[..at], &fit(), &Interner::new()).is_err(), "cut at {at}");
    }
    let mut longer = file;
    longer.push(0);
    assert!(decode(&longer, &fit(), &Interner::new()).is_err());
}

#[test]
fn no_length_is_believed() {
    let kept = small();
    let file = encode(&kept, WIDTH);
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    // Each byte of the variable part in turn becomes a number of 63 bits. Room for so many would not be had.
    let mut accepted = 0;
    for at in 12 + 44..file.len() - 8 {
        let file = [&file[..at], &huge, &file[at + 1..]].concat();
        if let Ok(back) = decode(&resealed(file), &fit(), &Interner::new()) {
            accepted += 1;
            assert_eq!(back.version.checksum(), kept.version.checksum(), "byte {at}");
        }
    }
    assert!((1..=3).contains(&accepted), "a revision alone may be any number");
}

#[test]
fn what_is_not_ours_is_told_apart() {
    let file = encode(&small(), WIDTH);
    let with = |at: usize, byte: u8| {
        let mut file = file.clone();
        file[at] = byte;
        decode(&resealed(file), &fit(), &Interner::new()).unwrap_err()
    };
    assert_eq!(with(0, b'm'), FormatError::NotAPicture);
    assert_eq!(with(8, 2), FormatError::ForeignVersion(2));
    let red = Fit { name: ClusterName::new("red").unwrap(), ..fit() };
    let decode = |fit: &Fit| decode(&file, fit, &Interner::new()).unwrap_err();
    assert_eq!(decode(&red), FormatError::OtherCluster("blue".into()));
    let wider = Fit { width: MaxConnectedClusters::C511, ..fit() };
    assert_eq!(decode(&wider), FormatError::Width { theirs: 255, ours: 511 });
    let narrow = Fit { max_key_string: 10, ..fit() };
    assert!(matches!(decode(&narrow), FormatError::Damaged(_)));
}

fn files(path: &Path) -> Vec<String> {
    let mut files: Vec<_> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort_unstable();
    files
}

#[test]
fn a_picture_is_kept_replaced_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    let store = PictureStore::open(&path).unwrap();
    let mode = |file: &str| std::fs::metadata(path.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    assert!(store.load(&fit(), &Interner::new()).unwrap().is_none());
    store.save(&picture(&Contents::new()), WIDTH).unwrap();
    store.save(&small(), WIDTH).unwrap();
    assert_eq!(files(&path), [".lock", "blue.picture"]);
    assert_eq!(mode("blue.picture"), 0o600);
    assert_eq!(store.names().unwrap(), [fit().name]);
    let back = store.load(&fit(), &Interner::new()).unwrap().unwrap();
    assert_eq!(shown(&back.version), shown(&small().version));
    store.remove(&fit().name).unwrap();
    store.remove(&fit().name).unwrap();
    assert_eq!(files(&path), [".lock"]);
}

#[test]
fn a_damaged_picture_is_set_aside_and_only_a_few_are() {
    let dir = tempfile::tempdir().unwrap();
    let store = PictureStore::open(dir.path()).unwrap();
    let file = dir.path().join("blue.picture");
    for n in 1..=5u8 {
        std::fs::write(&file, [n]).unwrap();
        let error = store.load(&fit(), &Interner::new()).unwrap_err();
        let LoadError::SetAside { to, why: FormatError::Damaged(_), .. } = error else { panic!("{error}") };
        assert_eq!(std::fs::read(to).unwrap(), [n], "the newest is the first");
    }
    let aside = |n: u8| format!("blue.picture.damaged-{n}");
    assert_eq!(files(dir.path()), [".lock".to_owned(), aside(1), aside(2), aside(3)]);
    assert_eq!(std::fs::read(dir.path().join(aside(3))).unwrap(), [3]);
    assert!(store.load(&fit(), &Interner::new()).unwrap().is_none());
    assert!(store.names().unwrap().is_empty());
    store.remove(&fit().name).unwrap();
    assert_eq!(files(dir.path()), [".lock"]);
}

#[test]
fn one_that_does_not_fit_stays_for_when_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let store = PictureStore::open(dir.path()).unwrap();
    store.save(&small(), WIDTH).unwrap();
    let wider = Fit { width: MaxConnectedClusters::C511, ..fit() };
    assert!(matches!(store.load(&wider, &Interner::new()), Err(LoadError::Unfit { .. })));
    assert!(store.load(&fit(), &Interner::new()).unwrap().is_some());
}

#[test]
fn what_a_crash_left_half_written_is_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let store = PictureStore::open(dir.path()).unwrap();
    store.save(&small(), WIDTH).unwrap();
    drop(store);
    let file = encode(&small(), WIDTH);
    std::fs::write(dir.path().join(".blue.picture.new"), &file[..file.len() / 2]).unwrap();
    std::fs::write(dir.path().join("notes.new"), "not ours").unwrap();
    let store = PictureStore::open(dir.path()).unwrap();
    assert_eq!(files(dir.path()), [".lock", "blue.picture", "notes.new"]);
    assert!(store.load(&fit(), &Interner::new()).unwrap().is_some());
}

#[test]
fn a_directory_has_one_user() {
    let dir = tempfile::tempdir().unwrap();
    let store = PictureStore::open(dir.path()).unwrap();
    let second = PictureStore::open(dir.path()).unwrap_err();
    assert!(matches!(&second, OpenError::InUse { .. }) && second.to_string().contains("another gateway"));
    drop(store);
    PictureStore::open(dir.path()).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(PictureStore::open(&file), Err(OpenError::Unusable { .. })));
}
