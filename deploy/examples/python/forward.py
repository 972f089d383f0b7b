"""Sends a batch by moe.v1. Stubs: python3 -m grpc_tools.protoc -Iproto
--python_out=. --grpc_python_out=. proto/moe/v1/moe.proto"""

import array
import sys

import grpc
from moe.v1 import moe_pb2, moe_pb2_grpc

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
rows = array.array("f", [(i % 7) / 7 for i in range(2 * 256)])
request = moe_pb2.ForwardRequest(
    model="demo",
    layer=0,
    hidden_states=moe_pb2.Tensor(
        dtype=moe_pb2.F32, shape=[2, 256], data=rows.tobytes()
    ),
)
with grpc.insecure_channel(address) as channel:
    output = moe_pb2_grpc.MoeServiceStub(channel).Forward(request).output
values = array.array("f", output.data)
shape = ",".join(map(str, output.shape))
print(f"output [{shape}]:", *(f"{x:.5f}" for x in values[:4]), "...")
