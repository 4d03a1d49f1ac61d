//! Tool calls as digests: equal for the same tool with arguments that mean the same, at any depth.
//!
//! Keys of objects have no order, and numbers are compared by their value (`1`, `1.0` and `1e0` are one number);
//! everything else counts as it is.

use serde_json::{Map, Number, Value};

/// The first 16 bytes of a blake3 hash: equal digests are equal things.
pub(super) type Digest = [u8; 16];

/// Digests a call.
pub(super) fn call(tool: &str, args: &Value) -> Digest {
    let mut hasher = blake3::Hasher::new();
    add_text(&mut hasher, tool);
    add(&mut hasher, args);
    first_half(&hasher)
}

/// What a hasher has taken so far, as a digest.
pub(super) fn first_half(hasher: &blake3::Hasher) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

/// Every value begins with a mark of its kind and says how long it is, so that no two values share their bytes.
fn add(hasher: &mut blake3::Hasher, value: &Value) {
    match value {
        Value::Null => drop(hasher.update(b"z")),
        Value::Bool(false) => drop(hasher.update(b"f")),
        Value::Bool(true) => drop(hasher.update(b"t")),
        Value::Number(number) => add_number(hasher, number),
        Value::String(text) => {
            hasher.update(b"s");
            add_text(hasher, text);
        }
        Value::Array(items) => {
            hasher.update(b"[");
            add_length(hasher, items.len());
            items.iter().for_each(|item| add(hasher, item));
        }
        Value::Object(fields) => add_object(hasher, fields),
    }
}

fn add_object(hasher: &mut blake3::Hasher, fields: &Map<String, Value>) {
    hasher.update(b"{");
    add_length(hasher, fields.len());
    let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    for (name, value) in sorted {
        add_text(hasher, name);
        add(hasher, value);
    }
}

fn add_number(hasher: &mut blake3::Hasher, number: &Number) {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let float = number.as_f64().unwrap_or_default();
    match whole.or_else(|| whole_of(float)) {
        Some(whole) => drop(hasher.update(b"i").update(&whole.to_le_bytes())),
        None => drop(hasher.update(b"d").update(&float.to_bits().to_le_bytes())),
    }
}

/// The whole number that a float is, where it is one that 128 bits hold.
fn whole_of(float: f64) -> Option<i128> {
    /// 2^126; every float below it that has no fraction converts without loss.
    const LIMIT: f64 = 85_070_591_730_234_615_865_843_651_857_942_052_864.0;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the bounds")]
    (float.fract() == 0.0 && float.abs() < LIMIT).then_some(float as i128)
}

fn add_text(hasher: &mut blake3::Hasher, text: &str) {
    add_length(hasher, text.len());
    hasher.update(text.as_bytes());
}

fn add_length(hasher: &mut blake3::Hasher, length: usize) {
    hasher.update(&(length as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_means_the_same_is_equal_and_nothing_else() {
        let read = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
        let check = |left: &str, right: &str, equal: bool| {
            let (left_digest, right_digest) = (call("t", &read(left)), call("t", &read(right)));
            assert_eq!(left_digest == right_digest, equal, "{left} {right}");
        };
        check(r#"{"a":1,"b":{"c":[1,2],"d":null}}"#, r#"{"b":{"d":null,"c":[1,2]},"a":1}"#, true);
        check(r#"{"n":1}"#, r#"{"n":1.0}"#, true);
        check(r#"{"n":100}"#, r#"{"n":1e2}"#, true);
        check(r#"{"n":0}"#, r#"{"n":-0.0}"#, true);
        check(r#"{"n":10000000000000000000}"#, r#"{"n":1e19}"#, true);
        check(r#"{"n":0.5}"#, r#"{"n":5e-1}"#, true);
        // Neighbors that a conversion to floats would merge.
        check(r#"{"n":9007199254740993}"#, r#"{"n":9007199254740992}"#, false);
        check(r#"{"n":1}"#, r#"{"n":"1"}"#, false);
        check(r#"{"n":1}"#, r#"{"n":true}"#, false);
        check(r#"{"n":1}"#, r#"{"n":1.5}"#, false);
        check(r#"{"a":{"b":{"c":1}}}"#, r#"{"a":{"b":{"c":2}}}"#, false);
        check(r#"{"a":{"b":1}}"#, r#"{"a":{"c":1}}"#, false);
        check("[[1],2]", "[1,[2]]", false);
        check("[1,2]", "[2,1]", false);
        check(r#"["ab","c"]"#, r#"["a","bc"]"#, false);
        check(r#"{"a":null}"#, "{}", false);
        check("null", "{}", false);
        check(r#"" a""#, r#""a""#, false);
    }

    #[test]
    fn the_tool_is_part_of_the_call() {
        assert_ne!(call("read", &json!({})), call("write", &json!({})));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e30..1e30_f64).prop_map(Value::from),
            "[a-c ]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]{0,2}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// The same value with the keys of every object the other way round.
    fn turned(value: &Value) -> Value {
        match value {
            Value::Array(items) => items.iter().map(turned).collect(),
            Value::Object(fields) => {
                let fields = fields.iter().rev();
                Value::Object(fields.map(|(name, value)| (name.clone(), turned(value))).collect())
            }
            leaf => leaf.clone(),
        }
    }

    proptest! {
        #[test]
        fn the_order_of_keys_is_irrelevant_and_a_difference_at_any_depth_is_not(value in any_json()) {
            prop_assert_eq!(call("t", &value), call("t", &turned(&value)));
            let inside = json!({ "a": [value, 1] });
            let mut other = inside.clone();
            other["a"][1] = json!(2);
            prop_assert_ne!(call("t", &inside), call("t", &other));
        }
    }
}
