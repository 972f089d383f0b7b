// Sends a batch by the Open Inference Protocol.
// npm install @grpc/grpc-js @grpc/proto-loader
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const protos = path.join(__dirname, '../../../proto');
const {inference} = grpc.loadPackageDefinition(
    loader.loadSync('inference/inference.proto', {includeDirs: [protos]}));
const client = new inference.GRPCInferenceService(
    process.argv[2] || '127.0.0.1:50051', grpc.credentials.createInsecure());
const rows = Float32Array.from({length: 2 * 256}, (_, i) => (i % 7) / 7);
const request = {
  modelName: 'demo.layers.0',
  inputs: [{name: 'hidden_states', datatype: 'FP32', shape: [2, 256]}],
  rawInputContents: [Buffer.from(rows.buffer)],
};
client.ModelInfer(request, (error, response) => {
  if (error) throw error;
  const data = response.rawOutputContents[0];
  const first = [0, 1, 2, 3].map(i => data.readFloatLE(4 * i).toFixed(5));
  console.log(`output [${response.outputs[0].shape.join()}]: ${first.join(' ')} ...`);
  client.close();
});
