//! Defaults, below a file, below variables, below flags.

use onceward_gateway::settings::{Role, StoreUrl};

use crate::Given;

const FILE: &str = "listen = \"127.0.0.1:1\"\nnamespace = \"file\"\nscope = [\"authorization\"]\n\
                    [admin]\nlisten = \"127.0.0.1:2\"\n";

#[test]
fn flags_win_over_variables_and_variables_over_the_file_and_the_file_over_defaults() {
    let given = Given {
        file: Some(FILE),
        variables: &[("ONCEWARD_NAMESPACE", "variable"), ("ONCEWARD_ADMIN_LISTEN", "127.0.0.1:3")],
        flags: &[("namespace", &["flag"])],
    };
    let settings = given.load().unwrap().settings;
    assert_eq!(settings.namespace, "flag");
    assert_eq!(settings.admin.listen.port(), 3);
    assert_eq!(settings.listen.port(), 1);
    assert_eq!(settings.store, StoreUrl::Sqlite("onceward.db".into()));
    let shown = given.show();
    for line in ["\"flag\"", "# --namespace", "# ONCEWARD_ADMIN_LISTEN", "# onceward.toml:1\n", "# default"] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
}

#[test]
fn the_effective_values_can_be_read_again_and_say_where_they_came_from() {
    let file = "scope = [\"fixed:demo\"]\nsecret = { env = \"MY_SECRET\" }\n[[routes]]\nmatch = \"POST /payments\"\n\
                key = \"required\"\n[[admin.tokens]]\nname = \"ada\"\nrole = \"operator\"\ntoken = { env = \"ADA\" }\n";
    let variables: &[(&str, &str)] =
        &[("MY_SECRET", "hunter2hunter2hunter2"), ("ADA", "0123456789abcdefhunter2")];
    let given = Given { file: Some(file), variables, flags: &[("defaults.retention", &["7d"])] };
    let shown = given.show();
    assert!(!shown.contains("hunter2"));
    insta::assert_snapshot!(shown);
    let again = Given { file: Some(&shown), variables, flags: &[] };
    assert_eq!(
        format!("{:?}", again.load().unwrap().settings),
        format!("{:?}", given.load().unwrap().settings)
    );
}

#[test]
fn lists_are_given_with_commas_or_again_and_again_or_as_toml() {
    for scope in [
        &["authorization,header:X-Tenant"][..],
        &["authorization", "header:X-Tenant"],
        &["[\"authorization\", \"header:X-Tenant\"]"],
    ] {
        let flags: &[(&str, &[&str])] = &[("scope", scope), ("scope_verified", &["true"])];
        let settings = Given { flags, ..Given::default() }.load().unwrap().settings;
        assert_eq!(settings.scope.to_string(), "authorization,header:x-tenant");
    }
    let given = Given {
        variables: &[
            ("ONCEWARD_SCOPE", "authorization"),
            ("ONCEWARD_RETRYABLE", "429, 503"),
            ("ONCEWARD_UNKNOWN", ""),
        ],
        flags: &[
            ("routes", &["[{ match = \"POST /a\", key = \"required\" }]"]),
            ("limits.connections", &["7"]),
        ],
        ..Given::default()
    };
    let settings = given.load().unwrap().settings;
    assert_eq!(settings.limits.connections, 7);
    let shown = given.show();
    assert!(shown.contains("retryable = [429, 503]") && shown.contains("unknown = []"), "{shown}");
}

#[test]
fn the_variable_of_the_secret_may_hold_the_secret_itself_or_say_where_it_is() {
    let scope: &[(&str, &[&str])] = &[("scope", &["authorization"])];
    let itself =
        Given { variables: &[("ONCEWARD_SECRET", "0123456789abcdef")], flags: scope, ..Given::default() };
    assert!(itself.load().unwrap().settings.secret.is_some());
    assert!(itself.show().contains("secret = { env = \"ONCEWARD_SECRET\" }"));
    let elsewhere = Given {
        variables: &[("ONCEWARD_SECRET", "{ env = \"X\" }"), ("X", "0123456789abcdef")],
        flags: scope,
        ..Given::default()
    };
    assert!(elsewhere.show().contains("secret = { env = \"X\" }"));
}

#[test]
fn variables_that_hold_what_others_refer_to_or_that_clusters_set_are_not_settings() {
    let file = "scope = [\"authorization\"]\n[[admin.tokens]]\nname = \"ada\"\nrole = \"reader\"\n\
                token = { env = \"ONCEWARD_ADA\" }\n";
    let variables = &[
        ("ONCEWARD_ADA", "0123456789abcdef"),
        ("ONCEWARD_VECTORS", "/tmp"),
        ("ONCEWARD_PORT", "tcp://10.0.0.1:8420"),
        ("ONCEWARD_SERVICE_HOST", "10.0.0.1"),
        ("ONCEWARD_SERVICE_PORT_HTTP", "8420"),
        ("ONCEWARD_PORT_8420_TCP_ADDR", "10.0.0.1"),
    ];
    let settings = Given { file: Some(file), variables, flags: &[] }.load().unwrap().settings;
    let [token] = &settings.admin.tokens[..] else { panic!("{:?}", settings.admin) };
    assert_eq!(
        (token.name.as_str(), token.role, token.token.as_str()),
        ("ada", Role::Reader, "0123456789abcdef")
    );
}

#[test]
fn a_secret_in_a_file_is_read_without_its_line_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "0123456789abcdef\n").unwrap();
    let file = format!(
        "scope = [\"authorization\"]\n[[admin.tokens]]\nname = \"ada\"\nrole = \"worker\"\ntoken = {{ file = {path:?} }}\n"
    );
    let settings = Given { file: Some(&file), ..Given::default() }.load().unwrap().settings;
    assert_eq!(settings.admin.tokens[0].token, "0123456789abcdef");
}

#[test]
fn sources_can_be_read_again_when_the_file_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = Given { file: Some(FILE), ..Given::default() }.sources(folder.path()).load().unwrap();
    std::fs::write(folder.path().join("onceward.toml"), FILE.replace("127.0.0.1:1", "127.0.0.1:9")).unwrap();
    assert_eq!(loaded.sources.load().unwrap().settings.listen.port(), 9);
}

#[test]
fn the_engine_is_told_to_keep_the_largest_answer_of_any_route() {
    let file =
        "scope = [\"authorization\"]\n[[routes]]\nmatch = \"POST /a\"\nmax_response_body = \"10MiB\"\n";
    let settings = Given { file: Some(file), ..Given::default() }.load().unwrap().settings;
    assert!(settings.limits.reply_bytes > 10 << 20);
}
