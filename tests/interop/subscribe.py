"""A subscriber written from the published proto alone, with none of Meshgate's code.

Folds the stream as the contract in `mesh.proto` says, and checks count and checksum of every Synced and Batch with an XXH3 of
its own. Prints a JSON object a line: what each cluster holds after each such frame, and how streams began and ended.

    subscribe.py PROTO_DIR [--selector S] ADDRESS [ADDRESS ...]

Goes from one address to the next when a stream ends, with the tokens that it has.
"""

import argparse
import importlib
import json
import pathlib
import sys
import tempfile

import grpc
import xxhash
from grpc_tools import protoc


def load(proto_dir):
    """The messages and the stub, generated now."""
    out = tempfile.mkdtemp(prefix="meshgate-interop-")
    included = pathlib.Path(protoc.__file__).parent / "_proto"
    files = ["meshgate/v1/identity.proto", "meshgate/v1/mesh.proto"]
    args = ["protoc", f"-I{proto_dir}", f"-I{included}", f"--python_out={out}", f"--grpc_python_out={out}", *files]
    if protoc.main(args) != 0:
        sys.exit("protoc failed")
    sys.path.insert(0, out)
    return (importlib.import_module(f"meshgate.v1.mesh_{kind}") for kind in ("pb2", "pb2_grpc"))


def contribution(number, labels):
    key_string = "".join(label + ";" for label in labels).encode()
    inner = xxhash.xxh3_64_intdigest(key_string)
    return xxhash.xxh3_64_intdigest(inner.to_bytes(8, "little"), seed=number)


class Mesh:
    """What is held: complete clusters, and what is on its way to them."""

    def __init__(self):
        self.clusters = {}
        self.tokens = {}
        self.begin()

    def begin(self):
        self.staged, self.parts, self.confirmed = {}, {}, set()

    def verify(self, frame):
        held = self.clusters[frame.cluster]
        checksum = sum(contribution(*one) for one in held.items()) % 2**64
        if (len(held), checksum) != (frame.count, frame.checksum):
            sys.exit(f"{frame.cluster}: {len(held)} with {checksum:016x} are held, told were {frame}")
        self.tokens[frame.cluster] = frame.token
        self.confirmed.add(frame.cluster)

    def remove(self, cluster):
        for known in (self.clusters, self.tokens, self.staged, self.parts):
            known.pop(cluster, None)
        self.confirmed.discard(cluster)

    def apply(self, kind, frame):
        if kind == "snapshot_begin":
            self.staged[frame.cluster] = {}
        elif kind == "snapshot_chunk":
            self.staged[frame.cluster].update((one.number, tuple(one.labels)) for one in frame.identities)
        elif kind == "synced":
            if not frame.resumed:
                self.clusters[frame.cluster] = self.staged.pop(frame.cluster)
            self.verify(frame)
        elif kind == "batch":
            self.parts.setdefault(frame.cluster, []).append(frame)
            if not frame.more:
                held = self.clusters[frame.cluster]
                for part in self.parts.pop(frame.cluster):
                    for number in part.removed:
                        held.pop(number, None)
                    held.update((one.number, tuple(one.labels)) for one in part.upserted)
                self.verify(frame)
        elif kind == "cluster_removed":
            self.remove(frame.cluster)
        elif kind == "all_synced" and not frame.unsettled:
            for cluster in set(self.clusters) - self.confirmed - set(frame.left_out):
                self.remove(cluster)
        elif kind == "heartbeat":
            self.tokens.update((one.cluster, one.token) for one in frame.clusters if one.cluster in self.confirmed)


def say(**what):
    print(json.dumps(what), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("proto_dir")
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--selector", default="")
    args = parser.parse_args()
    mesh_pb2, mesh_pb2_grpc = load(args.proto_dir)
    mesh = Mesh()
    for address in args.addresses:
        mesh.begin()
        request = mesh_pb2.SubscribeRequest(label_selector=args.selector, resume_tokens=mesh.tokens)
        with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
            try:
                for response in mesh_pb2_grpc.MeshServiceStub(channel).Subscribe(request):
                    kind = response.WhichOneof("frame")
                    # A frame that this client is too old for is no frame to it.
                    if kind is None:
                        continue
                    frame = getattr(response, kind)
                    mesh.apply(kind, frame)
                    if kind in ("synced", "batch") and not getattr(frame, "more", False):
                        resumed = kind == "synced" and frame.resumed
                        say(event=kind, cluster=frame.cluster, count=frame.count, checksum=frame.checksum, resumed=resumed)
                    elif kind in ("all_synced", "go_away"):
                        say(event=kind)
            except grpc.RpcError as error:
                say(event="ended", code=error.code().name)


main()
