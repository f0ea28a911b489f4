{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "paceline" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-paceline" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- /* The operator writes the first and third into the engines' NetworkPolicies: they never change. */ -}}
{{- define "paceline.selector" -}}
app.kubernetes.io/name: paceline
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "paceline.labels" -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/part-of: paceline
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{- define "paceline.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "paceline.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "paceline.masterKeySecret" -}}
{{- .Values.masterKey.existingSecret | default (printf "%s-master-key" (include "paceline.fullname" .)) -}}
{{- end }}

{{- define "paceline.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "paceline.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "paceline.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- /* What the operator does in the namespaces of servings, and no more. Secrets are written and never read. */ -}}
{{- define "paceline.rules" -}}
- apiGroups: [paceline.dev]
  resources: [speculativeservings, speculationexperiments, speculationprofiles]
  verbs: [get, list, watch]
- apiGroups: [paceline.dev]
  resources: [speculativeservings/status, speculationexperiments/status, speculationprofiles/status]
  verbs: [patch]
# Replicas, with autoscaling.mode Builtin.
- apiGroups: [paceline.dev]
  resources: [speculativeservings/scale]
  verbs: [update]
# Where owner references are checked (OpenShift), children that block their owner's deletion need this.
- apiGroups: [paceline.dev]
  resources: [speculativeservings/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch, delete]
{{- /* Of kinds that the cluster may lack. They are not watched. */ -}}
{{- $optional := dict
  "leaderWorkerSet" (list "leaderworkerset.x-k8s.io" "leaderworkersets")
  "inferencePool" (list "inference.networking.k8s.io" "inferencepools")
  "httpRoute" (list "gateway.networking.k8s.io" "httproutes")
  "scaledObject" (list "keda.sh" "scaledobjects") }}
{{- range $name, $granted := .Values.integrations }}
{{- if $granted }}
{{- $of := get $optional $name }}
- apiGroups: [{{ index $of 0 }}]
  resources: [{{ index $of 1 }}]
  verbs: [get, list, create, patch, delete]
{{- end }}
{{- end }}
# Deleted where an engine hangs; the log of one that ended says why.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# The record of engines that ended.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
# Listed for pods that wait for a volume: only events say which Secret is missing.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}
