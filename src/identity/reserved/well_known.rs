//! Well-known identities: components that must have an identity before any allocator runs, 100 to 115.

use crate::identity::{CLUSTER_LABEL_KEY, ClusterName, LabelRef, NumericIdentity, SOURCE_K8S, sorted_key_string};

const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const NAMESPACE_NAME: &str = "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";
const SERVICE_ACCOUNT: &str = "io.cilium.k8s.policy.serviceaccount";

const FIRST: u32 = 100;

/// Where a component runs.
enum Namespace {
    /// Where Cilium was installed.
    Cilium,
    /// Always `kube-system`.
    KubeSystem,
}
use Namespace::{Cilium, KubeSystem};

struct Component {
    namespace: Namespace,
    service_account: &'static str,
    labels: &'static [(&'static str, &'static str)],
}

/// In the order of their numbers, from 100 on.
const COMPONENTS: [Component; 8] = [
    // etcd-operator
    Component { namespace: Cilium, service_account: "cilium-etcd-sa", labels: &[("io.cilium/app", "etcd-operator")] },
    // the etcd it runs
    Component {
        namespace: Cilium,
        service_account: "default",
        labels: &[("app", "etcd"), ("etcd_cluster", "cilium-etcd"), ("io.cilium/app", "etcd-operator")],
    },
    // kube-dns
    Component { namespace: KubeSystem, service_account: "kube-dns", labels: &[("k8s-app", "kube-dns")] },
    // kube-dns of EKS
    Component {
        namespace: KubeSystem,
        service_account: "kube-dns",
        labels: &[("eks.amazonaws.com/component", "kube-dns"), ("k8s-app", "kube-dns")],
    },
    // CoreDNS
    Component { namespace: KubeSystem, service_account: "coredns", labels: &[("k8s-app", "kube-dns")] },
    // cilium-operator
    Component {
        namespace: Cilium,
        service_account: "cilium-operator",
        labels: &[
            ("app.kubernetes.io/name", "cilium-operator"),
            ("app.kubernetes.io/part-of", "cilium"),
            ("io.cilium/app", "operator"),
            ("name", "cilium-operator"),
        ],
    },
    // CoreDNS of EKS
    Component {
        namespace: KubeSystem,
        service_account: "coredns",
        labels: &[("eks.amazonaws.com/component", "coredns"), ("k8s-app", "kube-dns")],
    },
    // cilium-etcd-operator; two of its keys really end in the value and have none: Cilium's table says `: ` for `=`
    Component {
        namespace: Cilium,
        service_account: "cilium-etcd-operator",
        labels: &[
            ("app.kubernetes.io/name: cilium-etcd-operator", ""),
            ("app.kubernetes.io/part-of: cilium", ""),
            ("io.cilium/app", "etcd-operator"),
            ("name", "cilium-etcd-operator"),
        ],
    },
];

/// Number and key string of each component, twice: the second eight for clusters whose namespaces carry their name as a
/// label (Kubernetes 1.21 and later).
pub(super) fn well_known(
    cluster: &ClusterName,
    cilium_namespace: &str,
) -> impl Iterator<Item = (NumericIdentity, String)> {
    let key_string = move |component: &Component, namespace_is_labelled: bool| {
        let namespace = match component.namespace {
            Cilium => cilium_namespace,
            KubeSystem => "kube-system",
        };
        let common = [
            (CLUSTER_LABEL_KEY, cluster.as_str()),
            (SERVICE_ACCOUNT, component.service_account),
            (NAMESPACE, namespace),
        ];
        let namespace_name = namespace_is_labelled.then_some((NAMESPACE_NAME, namespace));
        sorted_key_string(
            common
                .into_iter()
                .chain(namespace_name)
                .chain(component.labels.iter().copied())
                .map(|(key, value)| LabelRef { source: SOURCE_K8S, key, value }),
        )
    };
    (FIRST..)
        .zip([false, true].into_iter().flat_map(move |namespace_is_labelled| {
            COMPONENTS.iter().map(move |component| key_string(component, namespace_is_labelled))
        }))
        .map(|(number, key_string)| (NumericIdentity::new(number), key_string))
}
