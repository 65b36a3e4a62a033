//! Compiles `proto/` with protox: our own protos need no protoc.

use std::path::{Path, PathBuf};

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut descriptors = protox::compile(["meshgate/v1/mesh.proto"], ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("meshgate_descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors.clone())?;

    if std::env::var_os("CARGO_FEATURE_SERVER").is_none() {
        return Ok(());
    }
    // Frames of a subscription are encoded once for many subscribers, which no generated method can do: ours is beside it.
    for service in descriptors.file.iter_mut().flat_map(|file| &mut file.service) {
        service.method.retain(|method| method.name() != "Subscribe");
    }
    let server = out.join("server");
    std::fs::create_dir_all::<&Path>(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".meshgate.v1", "crate::pb")
        .out_dir(server)
        .compile_fds(descriptors)?;
    Ok(())
}
