use serde_json::json;

use super::*;

fn show(info: Value) -> ModelInfo {
    let body: ShowBody = serde_json::from_value(json!({ "model_info": info })).expect("a show");
    body.into_info("m")
}

#[test]
fn the_geometry_is_told_only_where_every_number_is_there() {
    let check = |info: Value, expect: Option<u64>| {
        let geometry = show(info.clone()).geometry;
        assert_eq!(geometry.map(|geometry| geometry.bytes_per_token()), expect, "{info}");
    };
    let usual = json!({
        "general.architecture": "a", "a.block_count": 2, "a.embedding_length": 64,
        "a.attention.head_count": 4, "a.attention.head_count_kv": 2,
    });
    // 2 layers of 2 heads of 16 numbers for keys and for values, of 2 bytes each.
    check(usual.clone(), Some(2 * 2 * 32 * 2));
    let with = |name: &str, value: Value| {
        let mut info = usual.clone();
        info[name] = value;
        info
    };
    check(with("a.attention.key_length", json!(128)), Some(2 * 2 * 144 * 2));
    check(with("a.attention.head_count_kv", json!([1, 4])), Some(5 * 32 * 2));
    check(with("a.attention.head_count_kv", Value::Null), None);
    check(with("a.attention.head_count", json!(0)), None);
    check(with("general.architecture", json!("b")), None);
    check(json!({}), None);
}

#[test]
fn lists_that_go_writes_as_null_are_empty() {
    let tags: TagsBody = serde_json::from_str(r#"{"models":null}"#).expect("a list");
    assert!(tags.into_models().is_empty());
    let ps: PsBody = serde_json::from_str("{}").expect("a list");
    assert!(ps.into_models().is_empty());
    let body: ShowBody = serde_json::from_str(
        r#"{"capabilities":null,"messages":null,"model_info":null,"system":""}"#,
    )
    .expect("a show");
    let info = body.into_info("m");
    assert_eq!((info.system, info.capabilities.len()), (None, 0));
}

#[test]
fn times_are_sent_as_servers_read_them() {
    assert_eq!(keep_alive(Duration::from_secs(300)), json!(300));
    assert_eq!(keep_alive(Duration::ZERO), json!(0));
    assert_eq!(keep_alive(Duration::from_millis(2500)), json!("2500ms"));
}

#[test]
fn thinking_is_asked_for_in_the_servers_words() {
    let check = |think, expect: Value| assert_eq!(think_value(think), expect);
    check(Think::Off, json!(false));
    check(Think::On, json!(true));
    check(Think::Low, json!("low"));
    check(Think::Medium, json!("medium"));
    check(Think::High, json!("high"));
    check(Think::Max, json!("max"));
}
