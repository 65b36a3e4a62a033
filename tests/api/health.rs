//! What probes and debugging tools ask.

use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::*;
use crate::support::eventually;

async fn channel(server: &Server) -> Channel {
    Endpoint::from_shared(format!("http://{}", server.addr)).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn health_follows_readiness() {
    let server = Server::start().await;
    let client = HealthClient::new(channel(&server).await);
    let check = |service: &str| {
        let (mut client, service) = (client.clone(), service.to_owned());
        async move { client.check(HealthCheckRequest { service }).await.map(|answer| answer.into_inner().status()) }
    };
    for service in ["", "meshgate.v1.MeshService"] {
        eventually("serving", SOON, || async { check(service).await.unwrap() == ServingStatus::Serving }).await;
    }
    assert_eq!(check("other").await.unwrap_err().code(), tonic::Code::NotFound);
    let waiting = server.readiness.guard("something");
    eventually("not serving", SOON, || async { check("").await.unwrap() == ServingStatus::NotServing }).await;
    // One who watches is told, and let go at the end.
    let request = HealthCheckRequest { service: String::new() };
    let mut watch = client.clone().watch(request).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    drop(waiting);
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let begin = std::time::Instant::now();
    server.end().await;
    assert!(begin.elapsed() < Duration::from_secs(3), "a watcher does not hold the end");
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
}

#[tokio::test]
async fn reflection_knows_the_services_and_their_messages() {
    let server = Server::start().await;
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let questions = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("meshgate.v1.SubscribeResponse".to_owned())),
    ];
    let answers = client.server_reflection_info(tokio_stream::iter(questions)).await.unwrap().into_inner();
    let answers: Vec<_> = timeout(SOON, answers.collect()).await.unwrap();
    let [listed, file] = answers.try_into().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = listed.unwrap().message_response else { panic!("a list") };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    for service in ["meshgate.v1.MeshService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(names.iter().any(|name| name == service), "{names:?}");
    }
    assert!(matches!(file.unwrap().message_response, Some(MessageResponse::FileDescriptorResponse(_))));
    server.end().await;
}
