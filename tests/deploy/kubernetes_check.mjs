// Holds the Kubernetes objects in YAML files to the schemas of the npm packages
// kubernetes-models: see kubernetes_test.sh.
//
// The packages' own validator checks types, required fields and formats; the
// TypeScript compiler, given each object as a literal of its interface, refuses
// fields that do not exist. Then what objects of one file say of each other.
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from "node:fs";
import {dirname, join} from "node:path";
import {fileURLToPath} from "node:url";
import ts from "typescript";
import {parseAllDocuments} from "yaml";

const here = dirname(fileURLToPath(import.meta.url));
const problems = [];
const objects = [];  // {file, name, value}
for (const file of process.argv.slice(2)) {
  for (const document of parseAllDocuments(readFileSync(file, "utf8"), {uniqueKeys: true})) {
    for (const error of document.errors) problems.push(`${file}: ${error.message}`);
    const value = document.toJS();
    objects.push({file, name: `${file}: ${value.kind} ${value.metadata.name}`, value});
  }
}

// The module that describes an object.
function moduleOf({apiVersion, kind}) {
  const group = apiVersion.includes("/") ? apiVersion.split("/")[0] : "";
  const custom = group === "monitoring.coreos.com";
  return `${custom ? "@kubernetes-models/prometheus-operator" : "kubernetes-models"}/${apiVersion}/${kind}`;
}

const source = [];  // lines of TypeScript
const owner = [];   // the object of each
for (const [i, object] of objects.entries()) {
  const {kind} = object.value;
  const path = moduleOf(object.value);
  let model;
  try {
    model = (await import(path))[kind];
  } catch {
    problems.push(`${object.name}: there is no ${object.value.apiVersion} ${kind}`);
    continue;
  }
  try {
    new model(object.value).validate();
  } catch (error) {
    for (const one of error.errors ?? [error]) problems.push(`${object.name}: ${one.instancePath ?? ""} ${one.message}`);
  }
  const text = `import type {I${kind} as T${i}} from "${path}";\nexport const o${i}: T${i} = ${JSON.stringify(object.value, null, 1)};`;
  for (const line of text.split("\n")) {
    source.push(line);
    owner.push(object.name);
  }
}

const folder = mkdtempSync(join(here, "typed-"));
try {
  const main = join(folder, "objects.ts");
  writeFileSync(main, source.join("\n"));
  const program = ts.createProgram([main], {
    strict: true, noEmit: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler,
  });
  for (const found of ts.getPreEmitDiagnostics(program)) {
    const line = found.file?.fileName === main ? found.file.getLineAndCharacterOfPosition(found.start).line : -1;
    problems.push(`${owner[line] ?? "compiler"}: ${source[line]?.trim() ?? ""}: ${ts.flattenDiagnosticMessageText(found.messageText, " ")}`);
  }
} finally {
  rmSync(folder, {recursive: true});
}

const selects = (selector, labels) => Object.entries(selector ?? {}).every(([key, value]) => labels?.[key] === value);
// Everything, which an empty selector means, is too much.
const selectsIt = (selector, template) =>
  Object.keys(selector?.matchLabels ?? {}).length > 0 && selects(selector.matchLabels, template.metadata.labels);
for (const {file, name, value} of objects) {
  const others = kind => objects.filter(o => o.file === file && o.value.kind === kind).map(o => o.value);
  const template = others("Deployment")[0].spec.template;
  const ports = template.spec.containers.flatMap(container => container.ports.map(port => port.name));
  const expect = (good, what) => { if (!good) problems.push(`${name}: ${what}`); };
  if (value.kind === "Deployment") {
    expect(selectsIt(value.spec.selector, template), "does not select its own pods");
    // SIGTERM, drain and end have to fit.
    const seconds = Object.fromEntries(template.spec.containers[0].args.map(arg => /^--(drain_\w+)=(\d+)s$/.exec(arg)).filter(Boolean).map(m => [m[1], Number(m[2])]));
    expect(seconds.drain_delay + seconds.drain_timeout < template.spec.terminationGracePeriodSeconds, "is killed while it drains");
    expect(others("ServiceAccount").some(one => one.metadata.name === template.spec.serviceAccountName), "has no such service account");
  }
  if (value.kind === "Service") {
    expect(selects(value.spec.selector, template.metadata.labels), "selects no pod");
    for (const port of value.spec.ports) expect(ports.includes(port.targetPort), `no container port ${port.targetPort}`);
  }
  if (value.kind === "PodDisruptionBudget") expect(selectsIt(value.spec.selector, template), "does not select the pods");
  if (value.kind === "NetworkPolicy") {
    expect(selectsIt(value.spec.podSelector, template), "does not select the pods");
    for (const rule of value.spec.ingress) for (const {port} of rule.ports) expect(ports.includes(port), `no container port ${port}`);
  }
  if (value.kind === "HorizontalPodAutoscaler") {
    expect(others("Deployment").some(one => one.metadata.name === value.spec.scaleTargetRef.name), "scales nothing");
    expect(others("Deployment")[0].spec.replicas === undefined, "contends with the replicas of the Deployment");
  }
  if (value.kind === "ServiceMonitor") {
    const services = others("Service").filter(one => selects(value.spec.selector.matchLabels, one.metadata.labels));
    for (const {port} of value.spec.endpoints) expect(services.some(one => one.spec.ports.some(p => p.name === port)), `no service port ${port}`);
  }
}

for (const problem of problems) console.error(problem);
console.log(`${objects.length} objects, ${problems.length} problems`);
process.exit(problems.length > 0 || objects.length === 0 ? 1 : 0);
