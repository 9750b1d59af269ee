{{- define "hive-qos.name" -}}
{{- ternary .Release.Name (printf "%s-hive-qos" .Release.Name) (contains "hive-qos" .Release.Name) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "hive-qos.selector" -}}
app.kubernetes.io/name: hive-qos
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hive-qos.labels" -}}
{{ include "hive-qos.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "hive-qos.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Every container: nothing of root's powers but what is named, and nothing writable but what is mounted. */}}
{{- define "hive-qos.confined" -}}
runAsUser: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "hive-qos.podsCommand" -}}
- hive-qos
- pods
- --base=/etc/hive-qos/broker.toml
- --out=/run/hive-qos-config/broker.toml
- --allow={{ join "," .Values.pods.allowedClasses }}
{{- with .Values.pods.cgroupRoot }}
- --cgroup-root={{ . }}
{{- end }}
{{- end }}

{{- define "hive-qos.podsMounts" -}}
- { name: config, mountPath: /etc/hive-qos/broker.toml, subPath: broker.toml, readOnly: true }
- { name: merged, mountPath: /run/hive-qos-config }
- { name: cgroup, mountPath: /sys/fs/cgroup, readOnly: true }
{{- end }}

{{- define "hive-qos.nodeName" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}
