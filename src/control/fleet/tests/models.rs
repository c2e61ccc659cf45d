//! What is not known of the engines' models, and what that changes for requests and for `/v1/models`.

use super::*;

/// An engine may have a key that the front lacks, or be dead from the start: it is never learnt.
#[test]
fn a_model_that_is_named_is_never_the_default_ones() {
    let mut config = Config::clone(&fleet(3).config);
    config.serve.default_model = "a".into();
    let mut fleet = Fleet::new(Arc::new(config), Vec::new(), Arc::default());
    (0..3).for_each(|place| assert!(fleet.resolved(place.into(), vec![at(place)], Instant::now())));
    let members = |fleet: &mut Fleet, model: Option<&[u8]>| match fleet.snapshot().select(model) {
        Selected::Pool(pool) => Some(pool.members.to_vec()),
        _ => None,
    };
    serves(&mut fleet, 0, &["a"]);
    serves(&mut fleet, 1, &["b"]);
    for model in [None, Some(&b""[..]), Some(b"a")] {
        assert_eq!(members(&mut fleet, model), Some(vec![0]), "{model:?}");
    }
    assert_eq!(members(&mut fleet, Some(b"b")), Some(vec![1]));
    assert_eq!(members(&mut fleet, Some(b"c")), Some(vec![2]), "it may be the third one's");
    let (id, _) = fleet.target(2).unwrap();
    for _ in 0..2 {
        fleet.probed(2, id, failed(), Instant::now());
    }
    assert_eq!(members(&mut fleet, Some(b"c")), Some(vec![2]), "or have been");
    serves(&mut fleet, 2, &["c"]);
    let snapshot = fleet.snapshot();
    assert!(matches!(snapshot.select(Some(b"d")), Selected::UnknownModel));
    assert_eq!(members(&mut fleet, None), Some(vec![0]));
}

/// It may be served by those who have not said so yet.
#[test]
fn without_a_default_in_service_what_names_no_model_is_for_those_who_are_not_known() {
    let mut fleet = fleet(3);
    serves(&mut fleet, 0, &["a"]);
    serves(&mut fleet, 1, &["b"]);
    assert!(matches!(fleet.snapshot().select(None), Selected::Pool(pool) if *pool.members == [2]));
    serves(&mut fleet, 2, &["a"]);
    assert!(matches!(fleet.snapshot().select(None), Selected::NoModel));
}
