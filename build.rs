//! Compiles `proto/` with protox: our own protos need no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["meshgate/v1/mesh.proto"], ["proto"])?;
    let set = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("meshgate_descriptor.bin");
    std::fs::write(set, tonic_prost_build_descriptor(&descriptors))?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

/// The descriptors as bytes, for the reflection service.
fn tonic_prost_build_descriptor(descriptors: &impl prost::Message) -> Vec<u8> {
    descriptors.encode_to_vec()
}
