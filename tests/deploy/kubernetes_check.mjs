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
  const workloads = [...others("Deployment"), ...others("StatefulSet")];
  const expect = (good, what) => { if (!good) problems.push(`${name}: ${what}`); };
  // The pods that match a test, by their template: there have to be some.
  const templates = (matches, what) => {
    const found = workloads.map(one => one.spec.template).filter(matches);
    expect(found.length > 0, what);
    return found;
  };
  const expectPorts = (wanted, pods) => {
    for (const {spec} of pods) {
      const ports = spec.containers.flatMap(container => container.ports.map(port => port.name));
      for (const port of wanted) expect(ports.includes(port), `no container port ${port}`);
    }
  };
  if (workloads.includes(value)) {
    const template = value.spec.template;
    const container = template.spec.containers[0];
    expect(selectsIt(value.spec.selector, template), "does not select its own pods");
    expect(workloads.filter(one => selectsIt(value.spec.selector, one.spec.template)).length === 1, "selects the pods of others");
    // SIGTERM, drain and end have to fit.
    const seconds = Object.fromEntries(container.args.map(arg => /^--(drain_\w+)=(\d+)s$/.exec(arg)).filter(Boolean).map(m => [m[1], Number(m[2])]));
    expect(seconds.drain_delay + seconds.drain_timeout < template.spec.terminationGracePeriodSeconds, "is killed while it drains");
    expect(others("ServiceAccount").some(one => one.metadata.name === template.spec.serviceAccountName), "has no such service account");
    for (const {name: volume, configMap} of template.spec.volumes ?? []) {
      expect(!configMap || others("ConfigMap").some(one => one.metadata.name === configMap.name), `volume ${volume}: no such config map`);
      expect(container.volumeMounts.some(mount => mount.name === volume), `volume ${volume} is mounted nowhere`);
    }
  }
  if (value.kind === "StatefulSet") {
    const service = others("Service").find(one => one.metadata.name === value.spec.serviceName);
    expect(service?.spec.clusterIP === "None" && selects(service.spec.selector, value.spec.template.metadata.labels), "has no headless service of its own");
    // Replicas keep away from each other, not from other shards.
    for (const {labelSelector} of value.spec.template.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution) {
      expect(JSON.stringify(labelSelector) === JSON.stringify(value.spec.selector), "keeps away from others than its own replicas");
    }
  }
  if (value.kind === "ConfigMap" && value.data["placement.json"]) {
    // Every shard of the placement runs, under its name and at its target.
    const names = [];
    for (const shard of JSON.parse(value.data["placement.json"]).shards) {
      names.push(shard.name);
      for (const target of shard.targets) {
        const host = /^dns:\/\/\/([\w-]+):50051$/.exec(target)?.[1];
        const service = others("Service").find(one => one.metadata.name === host);
        const pods = templates(one => service && selects(service.spec.selector, one.metadata.labels), `nothing answers at ${target}`);
        for (const pod of pods) {
          expect(pod.metadata.labels["app.kubernetes.io/instance"] === shard.name, `${target} is not ${shard.name}`);
        }
      }
    }
    for (const {metadata} of others("StatefulSet")) {
      expect(names.includes(metadata.labels["app.kubernetes.io/instance"]), `${metadata.name} is no shard of it`);
    }
  }
  if (value.kind === "Service") {
    expectPorts(value.spec.ports.map(port => port.targetPort),
                templates(one => selects(value.spec.selector, one.metadata.labels), "selects no pod"));
  }
  if (value.kind === "PodDisruptionBudget") {
    templates(one => selectsIt(value.spec.selector, one), "does not select the pods");
  }
  if (value.kind === "NetworkPolicy") {
    const pods = templates(one => selectsIt(value.spec.podSelector, one), "does not select the pods");
    for (const rule of value.spec.ingress) expectPorts(rule.ports.map(({port}) => port), pods);
    for (const rule of value.spec.egress ?? []) {
      for (const {podSelector} of rule.to) {
        if (!podSelector) continue;
        const called = templates(one => selectsIt(podSelector, one), "lets it call nobody");
        expectPorts(rule.ports.map(({port}) => port), called);
      }
    }
  }
  if (value.kind === "HorizontalPodAutoscaler") {
    const scaled = others("Deployment").find(one => one.metadata.name === value.spec.scaleTargetRef.name);
    expect(scaled, "scales nothing");
    expect(scaled?.spec.replicas === undefined, "contends with the replicas of the Deployment");
  }
  if (value.kind === "ServiceMonitor") {
    const services = others("Service").filter(one => selects(value.spec.selector.matchLabels, one.metadata.labels));
    for (const {port} of value.spec.endpoints) expect(services.some(one => one.spec.ports.some(p => p.name === port)), `no service port ${port}`);
  }
}

for (const problem of problems) console.error(problem);
console.log(`${objects.length} objects, ${problems.length} problems`);
process.exit(problems.length > 0 || objects.length === 0 ? 1 : 0);
