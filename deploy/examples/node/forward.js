// Sends a batch by moe.v1. npm install @grpc/grpc-js @grpc/proto-loader
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const protos = path.join(__dirname, '../../../proto');
const {moe} = grpc.loadPackageDefinition(
    loader.loadSync('moe/v1/moe.proto', {includeDirs: [protos]}));
const client = new moe.v1.MoeService(
    process.argv[2] || '127.0.0.1:50051', grpc.credentials.createInsecure());
const rows = Float32Array.from({length: 2 * 256}, (_, i) => (i % 7) / 7);
const request = {
  model: 'demo', layer: 0,
  hiddenStates: {dtype: 'F32', shape: [2, 256], data: Buffer.from(rows.buffer)},
};
client.Forward(request, (error, {output} = {}) => {
  if (error) throw error;
  const first = [0, 1, 2, 3].map(i => output.data.readFloatLE(4 * i).toFixed(5));
  console.log(`output [${output.shape.join()}]: ${first.join(' ')} ...`);
  client.close();
});
