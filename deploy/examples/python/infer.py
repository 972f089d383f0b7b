"""Sends a batch by the Open Inference Protocol. Stubs: python3 -m
grpc_tools.protoc -Iproto --python_out=. --grpc_python_out=.
proto/inference/inference.proto"""

import array
import sys

import grpc
from inference import inference_pb2, inference_pb2_grpc

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
rows = array.array("f", [(i % 7) / 7 for i in range(2 * 256)])
request = inference_pb2.ModelInferRequest(
    model_name="demo.layers.0", raw_input_contents=[rows.tobytes()]
)
request.inputs.add(name="hidden_states", datatype="FP32", shape=[2, 256])
with grpc.insecure_channel(address) as channel:
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    response = stub.ModelInfer(request)
values = array.array("f", response.raw_output_contents[0])
shape = ",".join(map(str, response.outputs[0].shape))
print(f"output [{shape}]:", *(f"{x:.5f}" for x in values[:4]), "...")
