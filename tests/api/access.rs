//! Who may do what, by the names in the certificate.

use std::path::Path;
use std::sync::Arc;

use meshgate::access::AccessFile;
use meshgate::client::{ClientError, ClientOptions, ClientSecurity, Event, Subscription, Update, connect};
use tokio::net::TcpStream;
use tonic::Code;

use super::connections::mutual_tls;
use super::*;
use crate::support::{CertSpec, Pki};

const AGENT: &str = "spiffe://mesh.example/ns/shop/sa/agent";

const POLICY: &str = "
rules:
  - clients: ['spiffe://mesh.example/ns/*/sa/agent']
    roles: [subscriber]
    clusters: [a, b]
  - clients: ['dns:ops.example']
    roles: [admin]
  - clients: ['dns:*.allocators.example']
    roles: [allocator]
";

struct Guarded {
    server: Server,
    pki: Pki,
    file: Arc<AccessFile>,
    dir: tempfile::TempDir,
}

impl Guarded {
    async fn start(options: ServerOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), POLICY);
        let file = Arc::new(AccessFile::open(dir.path().join("access.yaml")).unwrap());
        let pki = Pki::temporary().unwrap();
        let server = Server::start_for(file.access(), mutual_tls(&pki), options).await;
        for (name, cluster) in [("a", 1), ("b", 2), ("c", 3)] {
            publish(&server, name, cluster, 5);
            server.status.update(name, |_| {});
        }
        Self { server, pki, file, dir }
    }

    fn client(&self, spec: &CertSpec) -> ClientOptions {
        let files = self.pki.issue(spec).unwrap();
        let security = ClientSecurity::MutualTls { ca: files.ca, cert: files.cert, key: files.key, server_name: None };
        ClientOptions { address: self.server.addr.to_string(), security }
    }

    fn change(&self, policy: &str) {
        write(self.dir.path(), policy);
        assert!(self.file.reload().unwrap());
    }

    fn refusals(&self, reason: &str) -> u64 {
        self.server.sample(&format!("meshgate_client_refusals_total{{reason=\"{reason}\"}}"))
    }
}

fn write(dir: &Path, policy: &str) {
    std::fs::write(dir.join("access.yaml"), policy).unwrap();
}

fn agent() -> CertSpec {
    CertSpec::client("agent").uri(AGENT)
}

async fn open(options: ClientOptions, clusters: &[&str]) -> Result<Subscription, ClientError> {
    let clusters = clusters.iter().map(|name| (*name).to_owned()).collect();
    let request = pb::SubscribeRequest { clusters, ..Default::default() };
    timeout(SOON, Subscription::open(options, request)).await.expect("an answer in time")
}

async fn until(sub: &mut Subscription, what: &str, last: impl Fn(&Event) -> bool) -> Event {
    let found = async {
        loop {
            let event = sub.next().await;
            if last(&event) {
                return event;
            }
        }
    };
    timeout(SOON, found).await.unwrap_or_else(|_| panic!("not within {SOON:?}: {what}"))
}

async fn all_synced(sub: &mut Subscription) -> Vec<String> {
    until(sub, "all synced", |event| matches!(event, Event::Update(Update::AllSynced { .. }))).await;
    sub.mesh().keys().cloned().collect()
}

#[tokio::test]
async fn roles_and_clusters_are_what_the_certificate_s_names_give() {
    let guarded = Guarded::start(ServerOptions::default()).await;
    let server = &guarded.server;
    let mut subscription = open(guarded.client(&agent()), &[]).await.unwrap();
    assert_eq!(all_synced(&mut subscription).await, ["a", "b"]);
    let mut agent_client = connect(&guarded.client(&agent())).await.unwrap();
    let mut ops = connect(&guarded.client(&CertSpec::client("ops").dns("ops.example"))).await.unwrap();
    let clusters = |list: pb::ListClustersResponse| -> Vec<_> { list.clusters.into_iter().map(|c| c.name).collect() };
    let seen = agent_client.list_clusters(pb::ListClustersRequest {}).await.unwrap().into_inner();
    assert_eq!(clusters(seen), ["a", "b"]);
    let seen = ops.list_clusters(pb::ListClustersRequest {}).await.unwrap().into_inner();
    assert_eq!(clusters(seen), ["a", "b", "c"]);

    // What stands in a hidden cluster is not there, by number and by labels.
    for (cluster, code) in [(2, Code::Ok), (3, Code::NotFound)] {
        let number = number(&builder("any", cluster), 1).get();
        let found = agent_client.get_identity(pb::GetIdentityRequest { number }).await;
        assert_eq!(found.map_or_else(|status| status.code(), |_| Code::Ok), code);
        assert!(ops.get_identity(pb::GetIdentityRequest { number }).await.is_ok());
    }
    let mut c = builder("c", 3);
    put(&mut c, 0, "k8s:app=hidden;k8s:io.cilium.k8s.policy.cluster=c;");
    sync(&mut c);
    server.view.publish(c.build());
    let labels = || pb::LookupByLabelsRequest {
        labels: vec!["k8s:app=hidden".to_owned(), "k8s:io.cilium.k8s.policy.cluster=c".to_owned()],
    };
    assert_eq!(agent_client.lookup_by_labels(labels()).await.unwrap_err().code(), Code::NotFound);
    assert!(ops.lookup_by_labels(labels()).await.is_ok());

    // Who else is there, an admin sees only.
    let refused = agent_client.list_subscribers(pb::ListSubscribersRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("role admin") && refused.message().contains(AGENT), "{refused:?}");
    assert!(ops.list_subscribers(pb::ListSubscribersRequest {}).await.is_ok());
    assert_eq!(guarded.refusals("no-role"), 1);

    // A cluster that one may not see cannot be asked for, whether there is one or not.
    for hidden in ["c", "nowhere"] {
        let error = open(guarded.client(&agent()), &["a", hidden]).await.unwrap_err().to_string();
        assert!(error.contains("PERMISSION_DENIED") && error.contains(&format!("`{hidden}`")), "{error}");
    }
    assert_eq!(guarded.refusals("hidden-cluster"), 2);
    guarded.server.end().await;
}

#[tokio::test]
async fn who_has_no_role_gets_nothing_but_health() {
    let guarded = Guarded::start(ServerOptions::default()).await;
    let strangers = [
        CertSpec::client("stranger").dns("stranger.example"),
        // The trust domain is another one, though the CA is ours.
        CertSpec::client("other").uri("spiffe://other.example/ns/shop/sa/agent"),
        // A common name is no name.
        CertSpec::client("cn").without_names().common_name("ops.example"),
        CertSpec::client("allocator").dns("x.allocators.example"),
    ];
    for spec in &strangers {
        let options = guarded.client(spec);
        let error = open(options.clone(), &[]).await.unwrap_err().to_string();
        assert!(error.contains("PERMISSION_DENIED") && error.contains("role subscriber"), "{error}");
        let refused = connect(&options).await.unwrap().get_identity(pb::GetIdentityRequest { number: 1 }).await;
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
    assert_eq!(guarded.refusals("no-role"), 8);
    guarded.server.end().await;
}

#[tokio::test]
async fn a_changed_policy_counts_for_open_streams_too() {
    let guarded = Guarded::start(ServerOptions::default()).await;
    let mut agent = open(guarded.client(&agent()), &[]).await.unwrap();
    let mut ops = open(guarded.client(&CertSpec::client("ops").dns("ops.example")), &[]).await.unwrap();
    assert_eq!(all_synced(&mut agent).await, ["a", "b"]);
    assert_eq!(all_synced(&mut ops).await, ["a", "b", "c"]);

    // More to see, less to see: the stream begins anew, and what is hidden now is removed.
    for (visible, held) in [("a, b, c", &["a", "b", "c"][..]), ("c", &["c"])] {
        guarded.change(&POLICY.replace("clusters: [a, b]", &format!("clusters: [{visible}]")));
        let went = until(&mut agent, "go away", |event| matches!(event, Event::Update(Update::GoAway(_)))).await;
        let Event::Update(Update::GoAway(went)) = went else { unreachable!() };
        assert_eq!(went.reason(), pb::GoAwayReason::AccessChanged);
        assert_eq!(all_synced(&mut agent).await, held);
    }
    // No role any more: refused from then on, but nothing is taken for gone.
    guarded.change(&POLICY.replace("roles: [subscriber]", "roles: [allocator]"));
    let refused = |event: &Event| match event {
        Event::Disconnected { why, .. } => why.to_string().contains("PERMISSION_DENIED"),
        Event::Update(_) => false,
    };
    until(&mut agent, "refused", refused).await;
    assert_eq!(agent.mesh().keys().collect::<Vec<_>>(), ["c"]);
    // Whose grant is the same noticed nothing.
    let mut c = builder("c", 3);
    fill(&mut c, 9, 16);
    sync(&mut c);
    guarded.server.view.publish(c.build());
    let event = timeout(SOON, ops.next()).await.unwrap();
    assert!(matches!(&event, Event::Update(Update::Changed { cluster, .. }) if cluster == "c"), "{event:?}");
    assert_eq!(guarded.server.sample("meshgate_subscription_ends_total{reason=\"denied\"}"), 3);
    guarded.server.end().await;
}

#[tokio::test]
async fn one_client_has_so_many_streams_and_others_theirs() {
    let subscribe = SubscribeOptions { max_per_client: 2, ..SubscribeOptions::default() };
    let guarded = Guarded::start(ServerOptions { subscribe, ..ServerOptions::default() }).await;
    let greedy = guarded.client(&agent());
    let mut open_streams = Vec::new();
    for _ in 0..2 {
        let mut stream = open(greedy.clone(), &[]).await.unwrap();
        all_synced(&mut stream).await;
        open_streams.push(stream);
    }
    let mut third = open(greedy.clone(), &[]).await.unwrap();
    let went = until(&mut third, "go away", |event| matches!(event, Event::Update(Update::GoAway(_)))).await;
    let Event::Update(Update::GoAway(went)) = went else { unreachable!() };
    assert_eq!(went.reason(), pb::GoAwayReason::Overloaded);
    assert!(went.message.contains("this client has 2"), "{}", went.message);
    assert_eq!(guarded.refusals("client-streams"), 1);
    let other = guarded.client(&CertSpec::client("other").uri("spiffe://mesh.example/ns/other/sa/agent"));
    all_synced(&mut open(other, &[]).await.unwrap()).await;
    // A stream that ends makes room: the third comes back by itself.
    open_streams.pop();
    all_synced(&mut third).await;
    guarded.server.end().await;
}

#[tokio::test]
async fn t4_more_handshakes_than_may_be_in_progress_cost_the_oldest() {
    let options = ServerOptions {
        max_handshakes: 8,
        // Longer than the test: whoever is let in is not let in because others ran out of time.
        handshake_timeout: Duration::from_mins(5),
        ..ServerOptions::default()
    };
    let guarded = Guarded::start(options).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(guarded.server.addr).await.unwrap());
    }
    all_synced(&mut open(guarded.client(&agent()), &[]).await.unwrap()).await;
    let crowd = || guarded.refusals("handshake-crowd");
    crate::support::eventually("the oldest are gone", SOON, async || crowd() >= 33).await;
    assert!(crowd() <= 33, "no more of them than had to be: {}", crowd());
    guarded.server.end().await;
}
